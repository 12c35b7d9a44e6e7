"""Looks at the queues while a stage runs, and says when it is over.

In: `queue-stats` of one action after the other, a few looks a second however many there are. Out: samples,
the progress that is shown, and three decisions: everything waits, so let it go; enough has ended, so lift the
limits; everything has ended, or nothing moves any more. Next: `opening` does what is decided.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.api import Api
from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.faults import Faults
from turnstile.stress.drive.opening import Limits, resume_actions
from turnstile.stress.drive.progression import Progression
from turnstile.stress.names import action_ref
from turnstile.stress.progress import Progress, Show
from turnstile.stress.recording import ActionCounters
from turnstile.stress.stage import Stage
from turnstile.stress.tables import NEVER, SAMPLE, SECOND, Answer, Table

_ROUND_SECONDS: Final = 0.25
_LOOK_SECONDS_MIN: Final = 0.05
_IDLE_FACTOR: Final = 9
"""Between two looks so many times as long as the last one took: watching must not be what is measured."""
_SHOW_SECONDS: Final = 0.25
_STUCK_SECONDS: Final = 30.0

Counts = NDArray[np.int64]
"""One for each action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a watcher needs to know and to do."""

    stage: Stage
    number: int
    stages: int
    orders: Table
    progression: Progression
    faults: Faults
    limits: Limits
    clock: Clock
    lease_seconds: float
    show: Show


class Watcher:
    """The eyes of one stage; `until_over` is all there is to call, once it knows where the counters stood."""

    def __init__(self, api: Api, watched: Watched) -> None:
        self._api = api
        self._of = watched
        load = watched.stage.load
        self._actions = watched.orders["queue"] // max(load.keys, 1)
        self._rejected = 0
        self._due_then: Counts = np.bincount(self._actions, minlength=load.actions)
        self._samples: list[tuple[int, int, int, int]] = []
        self._before = np.zeros((load.actions, 2), np.int64)
        self._now = np.zeros((load.actions, 2), np.int64)
        self._lines = np.zeros((load.actions, 2), np.int64)
        self._moved_at = 0.0
        self._moved: tuple[int, ...] = ()
        self._shown_at = 0.0
        self._lifts_after = watched.stage.drain_without_limit_after
        self.began_at = NEVER
        self.opened_at = NEVER

    @property
    def samples(self) -> Table:
        """What it saw."""
        return np.array(self._samples, SAMPLE)

    @property
    def counters(self) -> Sequence[ActionCounters]:
        """The counters before the first request, and as they stood when they were read last."""
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
        """Look at every action once."""
        for action in range(len(self._now)):
            await self._look(action)

    async def begin(self) -> None:
        """Note where the counters stand before the first request."""
        await self.read_counters()
        self._before = self._now.copy()
        self._samples.clear()
        self.began_at = self._of.clock.now()

    async def until_over(self) -> None:
        """Watch until everything has ended and all faults are healed, or nothing will move any more."""
        self._moved_at = asyncio.get_running_loop().time()
        while not self._is_stuck():
            for action in self._worth_a_look():
                before = asyncio.get_running_loop().time()
                await self._look(action)
                await self._react()
                self.show(self._of.faults.note)
                if self._all_ended and self._of.faults.over:
                    return
                took_seconds = asyncio.get_running_loop().time() - before
                round_seconds = _ROUND_SECONDS / len(self._now)
                await asyncio.sleep(max(round_seconds, _LOOK_SECONDS_MIN, _IDLE_FACTOR * took_seconds))

    def show(self, note: str, *, at_once: bool = False) -> None:
        """Tell how far it is, now and then."""
        now = asyncio.get_running_loop().time()
        if not at_once and now - self._shown_at < _SHOW_SECONDS:
            return
        self._shown_at = now
        self._of.show(
            Progress(
                stage=self._of.stage,
                number=self._of.number,
                stages=self._of.stages,
                elapsed_seconds=(self._of.clock.now() - self.began_at) / SECOND,
                sent=self._of.progression.confirmed,
                ended=self._ended,
                waiting=int(self._lines[:, 0].sum()),
                active=int(self._lines[:, 1].sum()),
                note=note,
            )
        )

    async def _look(self, action: int) -> None:
        found = await self._api.queue_stats(action_ref(action))
        self._now[action] = found["total_enqueued"], found["total_completed"]
        self._lines[action] = found["queue_length"], found["active_count"]
        at = self._of.clock.now()
        self._samples.append((at, action, found["queue_length"], found["active_count"]))

    async def _react(self) -> None:
        if self._of.stage.all_wait_first and self.opened_at == NEVER:
            if self._all_sent and self._lines[:, 0].sum() >= self._due.sum():
                self.opened_at = self._of.clock.now()
                await resume_actions(self._api, self._of.stage)
        elif self._lifts_after is not None and self._ended >= self._lifts_after:
            self._lifts_after = None
            await self._of.limits.lift()

    def _worth_a_look(self) -> list[int]:
        """Return all actions, or once everything was sent those that are not done."""
        if not self._all_sent:
            return list(range(len(self._now)))
        # Where all are done and a fault goes on, one look after the other still shows that time passes.
        return np.flatnonzero(~self._done).tolist() or [0]

    def _is_stuck(self) -> bool:
        """Whether nothing has moved for so long that nothing will."""
        now = asyncio.get_running_loop().time()
        moved = (self._of.progression.confirmed, *self._now.sum(axis=0), *self._lines.sum(axis=0))
        if moved != self._moved or not self._all_sent or not self._of.faults.over:
            self._moved, self._moved_at = moved, now
        longest_seconds = max(part.seconds for part in self._of.stage.load.mix.parts)
        patience_seconds = 2 * self._of.lease_seconds + _STUCK_SECONDS + longest_seconds
        return now - self._moved_at > patience_seconds

    @property
    def _due(self) -> Counts:
        """How many of each action are to end: all that were not refused."""
        if self._rejected != self._of.progression.rejected:
            self._rejected = self._of.progression.rejected
            taken = self._of.orders["answer"] != Answer.REJECTED
            self._due_then = np.bincount(self._actions[taken], minlength=len(self._now))
        return self._due_then

    @property
    def _ended(self) -> int:
        return int((self._now[:, 1] - self._before[:, 1]).sum())

    @property
    def _all_sent(self) -> bool:
        return self._of.progression.confirmed == len(self._of.orders)

    @property
    def _done(self) -> NDArray[np.bool_]:
        """Which actions have ended all that is due, and have nothing left; others may use them, too."""
        ended = self._now[:, 1] - self._before[:, 1]
        return (ended >= self._due) & ~self._lines.any(axis=1)

    @property
    def _all_ended(self) -> bool:
        return self._all_sent and bool(self._done.all())
