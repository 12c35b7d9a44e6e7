"""Counts what executions do, by action and minute: the history that charts show.

In: the decisions of each turn. Out: a row for each action in which something happened or a slot was in use,
once its minute is over; the next turns insert them. What counts is the minute in which the leader decided. A
new leader has rows of its own for the rest of a minute, and a reader adds both. A leader that is killed, or
has to load again, loses what it counted in the minute that had begun; one that stops writes it.
"""

from collections import Counter
from typing import Final

from turnstile.common.domain.states import Status
from turnstile.executor.histogram import histogram_of
from turnstile.executor.leader.records import MinuteRow
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.state import ActionState, State

MINUTE_SECONDS: Final = 60.0
_ROWS_MAX: Final = 1000
"""Rows that one turn inserts."""


class Minutes:
    """The minute that has begun, and the rows of those that are over."""

    def __init__(self, epoch: int, state: State, now: float) -> None:
        self._epoch = epoch
        self._rows: dict[str, MinuteRow] = {}
        self._over: list[MinuteRow] = []
        self._begin(state, now)

    def _begin(self, state: State, now: float) -> None:
        self._at = now // MINUTE_SECONDS * MINUTE_SECONDS
        self._slots = {
            action.ref: (action.slots_used, now) for action in state.actions.values() if action.slots_used
        }
        """By action: how many slots are in use, and since when they are not counted yet."""

    @property
    def is_due(self) -> bool:
        """Whether rows wait for a turn."""
        return bool(self._over)

    def take(self) -> list[MinuteRow]:
        """Return the rows that this turn inserts."""
        taken, self._over = self._over[:_ROWS_MAX], self._over[_ROWS_MAX:]
        return taken

    def add(self, state: State, out: Decisions) -> None:
        """Count what a turn decided. Called once per turn, also if it decided nothing."""
        if out.now >= self._at + MINUTE_SECONDS:
            self.close(state, out.now)
        for action, count in Counter(each.queue.action for each in out.admitted).items():
            self._of(action.ref).admitted += count
        changed = {each.queue.action for each in out.granted}
        for moved in out.moved:
            changed.add(moved.queue.action)
            if moved.status is Status.RUNNING:
                execution = state.executions.get(moved.id)
                queued_at = None if execution is None else execution.queued_at
                self._start(moved.queue.action, moved.attempt, queued_at, moved.at)
        for end in out.finished:
            action = end.queue.action
            changed.add(action)
            row = self._of(action.ref)
            row.ended[end.status] += 1
            if end.started_at is not None:
                row.running += histogram_of(end.completed_at - end.started_at)
                if end.previous is Status.SCHEDULED:
                    # A short attempt was not reported as started.
                    self._start(action, end.attempt, end.queued_at, end.started_at)
        for action in changed:
            self._use(action.ref, action.slots_used, out.now)

    def _start(self, action: ActionState, attempt: int, queued_at: float | None, at: float) -> None:
        row = self._of(action.ref)
        row.started += 1
        if attempt == 1 and queued_at is not None:
            row.waiting += histogram_of(at - queued_at)

    def _of(self, ref: str) -> MinuteRow:
        row = self._rows.get(ref)
        if row is None:
            row = self._rows[ref] = MinuteRow(at=self._at, action_ref=ref, epoch=self._epoch)
        return row

    def _use(self, ref: str, slots: int, now: float) -> None:
        """Note that so many slots are in use from now on."""
        before, since = self._slots.get(ref, (0, now))
        if before:
            self._of(ref).slot_seconds += before * (now - since)
        if slots:
            self._slots[ref] = slots, now
        else:
            self._slots.pop(ref, None)

    def close(self, state: State, now: float) -> None:
        """Let the minute be over, at its end or now, and begin the next one."""
        end = min(now, self._at + MINUTE_SECONDS)
        for ref, (slots, _) in list(self._slots.items()):
            self._use(ref, slots, end)
        self._over += self._rows.values()
        self._rows = {}
        self._begin(state, max(end, now // MINUTE_SECONDS * MINUTE_SECONDS))
