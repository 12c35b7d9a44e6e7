"""Samples the queues during a scenario and decides: resume the actions, or end the scenario.

A round reads `queue-stats` of each action; the pauses between rounds are nine times as long.
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

_PAUSE_SECONDS_MIN: Final = 0.25
_IDLE_FACTOR: Final = 9
"""The pause between rounds, as a multiple of their duration: sampling must not affect the result."""
_STUCK_SECONDS: Final = 30.0


class Watcher:
    """Watches the queues of one scenario: call `begin`, then `until_over`."""

    def __init__(
        self, run: ScenarioRun, api: Api, faults: Faults, *, lease_seconds: float, show: Show
    ) -> None:
        self._run, self._api, self._faults, self._show = run, api, faults, show
        self._patience_seconds = 2 * lease_seconds + _STUCK_SECONDS + run.scenario.load.mix.max_seconds
        shape = run.scenario.load.actions, 2
        self._before, self._now, self._lines = (np.zeros(shape, np.int64) for _ in range(3))
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
            found = await self._api.queue_stats(action_ref(action))
            self._now[action] = found["total_enqueued"], found["total_completed"]
            self._lines[action] = found["queue_length"], found["active_count"]

    async def begin(self) -> None:
        """Read the counters before the first request."""
        await self.read_counters()
        self._before = self._now.copy()
        self.began_at = self._run.clock.now()

    async def until_over(self) -> None:
        """Watch until everything has ended and all faults are repaired, or nothing changes any more."""
        now = asyncio.get_running_loop().time
        changed_at, values = now(), (-1,)
        while True:
            began = now()
            await self.read_counters()
            due, is_sent = self._due(), self._run.pacing.confirmed == len(self._run.orders)
            await self._resume(is_sent and bool(self._lines[:, 0].sum() >= due.sum()))
            self.show(self._faults.note)
            ended = self._now[:, 1] - self._before[:, 1]
            # Nothing may be left, of other clients either.
            is_done = bool((ended >= due).all()) and not self._lines.any()
            if is_sent and is_done and self._faults.over:
                return
            before, values = values, (self._run.pacing.confirmed, *self._now.flat, *self._lines.flat)
            if values != before or not is_sent or not self._faults.over:
                changed_at = now()
            # Longer than any recovery takes.
            if now() - changed_at > self._patience_seconds:
                return
            await asyncio.sleep(max(_PAUSE_SECONDS_MIN, _IDLE_FACTOR * (now() - began)))

    def show(self, note: str) -> None:
        """Report the progress."""
        self._show(
            Progress(
                scenario=self._run.scenario,
                elapsed_seconds=(self._run.clock.now() - self.began_at) / SECOND,
                sent=self._run.pacing.confirmed,
                ended=int((self._now[:, 1] - self._before[:, 1]).sum()),
                waiting=int(self._lines[:, 0].sum()),
                active=int(self._lines[:, 1].sum()),
                note=note,
            )
        )

    async def _resume(self, all_wait: bool) -> None:
        if all_wait and self._run.scenario.all_wait_first and self.opened_at == NEVER:
            self.opened_at = self._run.clock.now()
            await resume_actions(self._api, self._run.scenario)

    def _due(self) -> NDArray[np.int64]:
        """Return the number of executions of each action that must end: all that were not rejected."""
        orders, keys = self._run.orders, max(self._run.scenario.load.keys, 1)
        actions = orders["queue"][orders["answer"] != Answer.REJECTED] // keys
        return np.bincount(actions, minlength=len(self._now))
