"""Samples the queues during a scenario and decides: resume the actions, or end the scenario.

It reads `queue-stats` of one action after the other, a few samples per second for any number of actions.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.drive.faults import Faults
from turnstile.stress.drive.pacing import ScenarioRun
from turnstile.stress.drive.setup import resume_actions
from turnstile.stress.installation import Api
from turnstile.stress.recording import NEVER, SECOND, ActionCounters, Answer
from turnstile.stress.scenario import Progress, Show
from turnstile.stress.trace import action_ref

_ROUND_SECONDS: Final = 0.25
_SAMPLE_SECONDS_MIN: Final = 0.05
_IDLE_FACTOR: Final = 9
"""The pause between samples, as a multiple of their duration: sampling must not affect the result."""
_SHOW_SECONDS: Final = 0.25
_STUCK_SECONDS: Final = 30.0

Counts = NDArray[np.int64]
"""One value per action."""


class Watcher:
    """Watches the queues of one scenario: call `begin`, then `until_over`."""

    def __init__(
        self, run: ScenarioRun, api: Api, faults: Faults, *, lease_seconds: float, show: Show
    ) -> None:
        self._run, self._api, self._faults = run, api, faults
        self._scenario, self._pacing, self._clock = run.scenario, run.pacing, run.clock
        self._patience_seconds = 2 * lease_seconds + _STUCK_SECONDS + run.scenario.load.mix.max_seconds
        self._show = show
        load = run.scenario.load
        self._actions = run.orders["queue"] // max(load.keys, 1)
        self._rejected = 0
        self._due_then: Counts = np.bincount(self._actions, minlength=load.actions)
        self._before = np.zeros((load.actions, 2), np.int64)
        self._now = np.zeros((load.actions, 2), np.int64)
        self._lines = np.zeros((load.actions, 2), np.int64)
        self._changed_at = 0.0
        self._last_values: tuple[int, ...] = ()
        self._shown_at = 0.0
        self.began_at = NEVER
        self.opened_at = NEVER

    @property
    def counters(self) -> Sequence[ActionCounters]:
        """The counters before the first request and at the last reading."""
        return tuple(
            ActionCounters(
                enqueued_before=int(before[0]),
                enqueued=int(now[0]),
                completed_before=int(before[1]),
                completed=int(now[1]),
                queue_length=int(line[0]),
                active_count=int(line[1]),
            )
            for before, now, line in zip(self._before, self._now, self._lines, strict=True)
        )

    async def read_counters(self) -> None:
        """Sample every action once."""
        for action in range(len(self._now)):
            await self._sample(action)

    async def begin(self) -> None:
        """Read the counters before the first request."""
        await self.read_counters()
        self._before = self._now.copy()
        self.began_at = self._clock.now()

    async def until_over(self) -> None:
        """Watch until everything has ended and all faults are repaired, or nothing changes any more."""
        self._changed_at = asyncio.get_running_loop().time()
        while not self._is_stuck():
            for action in self._actions_to_sample():
                before = asyncio.get_running_loop().time()
                await self._sample(action)
                await self._react()
                self.show(self._faults.note)
                if self._all_ended and self._faults.over:
                    return
                took_seconds = asyncio.get_running_loop().time() - before
                round_seconds = _ROUND_SECONDS / len(self._now)
                await asyncio.sleep(max(round_seconds, _SAMPLE_SECONDS_MIN, _IDLE_FACTOR * took_seconds))

    def show(self, note: str, *, at_once: bool = False) -> None:
        """Report the progress, at most several times per second."""
        now = asyncio.get_running_loop().time()
        if not at_once and now - self._shown_at < _SHOW_SECONDS:
            return
        self._shown_at = now
        self._show(
            Progress(
                scenario=self._scenario,
                elapsed_seconds=(self._clock.now() - self.began_at) / SECOND,
                sent=self._pacing.confirmed,
                ended=self._ended,
                waiting=int(self._lines[:, 0].sum()),
                active=int(self._lines[:, 1].sum()),
                note=note,
            )
        )

    async def _sample(self, action: int) -> None:
        found = await self._api.queue_stats(action_ref(action))
        self._now[action] = found["total_enqueued"], found["total_completed"]
        self._lines[action] = found["queue_length"], found["active_count"]

    async def _react(self) -> None:
        is_paused = self._scenario.all_wait_first and self.opened_at == NEVER
        if is_paused and self._all_sent and self._lines[:, 0].sum() >= self._due.sum():
            self.opened_at = self._clock.now()
            await resume_actions(self._api, self._scenario)

    def _actions_to_sample(self) -> list[int]:
        """Return all actions, or after the last request those that are not done."""
        if not self._all_sent:
            return list(range(len(self._now)))
        # Where all are done and a fault continues, one action keeps the progress current.
        return np.flatnonzero(~self._done).tolist() or [0]

    def _is_stuck(self) -> bool:
        """Whether nothing has changed for longer than any recovery takes."""
        now = asyncio.get_running_loop().time()
        values = (self._pacing.confirmed, *self._now.sum(axis=0), *self._lines.sum(axis=0))
        if values != self._last_values or not self._all_sent or not self._faults.over:
            self._last_values, self._changed_at = values, now
        return now - self._changed_at > self._patience_seconds

    @property
    def _due(self) -> Counts:
        """The number of executions of each action that must end: all that were not rejected."""
        if self._rejected != self._pacing.rejected:
            self._rejected = self._pacing.rejected
            taken = self._run.orders["answer"] != Answer.REJECTED
            self._due_then = np.bincount(self._actions[taken], minlength=len(self._now))
        return self._due_then

    @property
    def _ended(self) -> int:
        return int((self._now[:, 1] - self._before[:, 1]).sum())

    @property
    def _all_sent(self) -> bool:
        return self._pacing.confirmed == len(self._run.orders)

    @property
    def _done(self) -> NDArray[np.bool_]:
        """The actions whose due executions have ended and that have none left, of other clients either."""
        ended = self._now[:, 1] - self._before[:, 1]
        return (ended >= self._due) & ~self._lines.any(axis=1)

    @property
    def _all_ended(self) -> bool:
        return self._all_sent and bool(self._done.all())
