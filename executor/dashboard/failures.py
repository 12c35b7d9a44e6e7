"""Decides which actions are read for failures, and keeps what was read (P9).

In: queues that changed, the time of each poll, and the rows of `dashboard_failures`. Out: where the next
reading starts, and for each action how its latest executions ended. Pure; `live` reads. One reading is
bounded in actions and rows, so 10,000 busy actions take turns.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import AwareDatetime, Field, computed_field

from turnstile.common.schemas import Schema

if TYPE_CHECKING:
    from turnstile.executor.dashboard.state import Queue

WINDOW: Final = timedelta(minutes=10)
"""Outcomes of this period are counted."""
_MINUTES: Final = int(WINDOW.total_seconds()) // 60
STARTS_MAX: Final = 200
"""Starts of one reading."""
ROWS_MAX: Final = 20_000
"""Executions in one reading, over all starts."""
_ROWS_OF_START_MAX: Final = 2000
GROUPS_MAX: Final = 20
EXAMINED_MAX: Final = 5000
"""Executions of one action, from each start, whose failures are grouped by error."""
_HEADS_MAX: Final = 4
"""Queues of one action from whose heads is read; those that changed last."""
_AGAIN_AFTER: Final = timedelta(seconds=5)
_AGED_AFTER: Final = timedelta(seconds=60)


class LastFailure(Schema):
    """The latest failure of an action within the window."""

    execution_id: int = Field(examples=[4711])
    status: str = Field(description="failed, timeout or abandoned.", examples=["failed"])
    at: AwareDatetime
    type: str | None = Field(description="Type of the error.", examples=["PermanentError"])
    message: str | None = Field(description="At most 300 characters.", examples=["no such customer"])


class Failures(Schema):
    """How the executions of an action ended, over all its queues."""

    failed: int = Field(description="Executions that ended as failed, timeout or abandoned.", examples=[3])
    ended: int = Field(description="All executions that ended.", examples=[120])
    since: AwareDatetime = Field(
        description=f"Ends from this instant on are counted: the last {_MINUTES} minutes, or less if more "
        "executions ended than are read."
    )
    last: LastFailure | None
    read_at: AwareDatetime = Field(exclude=True)

    @computed_field(examples=[0.025])  # type: ignore[prop-decorator]
    @property
    def share(self) -> float | None:
        """`failed` / `ended`; null without any."""
        return round(self.failed / self.ended, 4) if self.ended else None

    @computed_field(examples=[0.3])  # type: ignore[prop-decorator]
    @property
    def per_minute(self) -> float | None:
        """Failures a minute."""
        seconds = (self.read_at - self.since).total_seconds()
        return None if seconds < 1.0 else round(60.0 * self.failed / seconds, 2)


class FailureGroup(Schema):
    """Failures of an action with the same error."""

    count: int = Field(examples=[37])
    status: str = Field(description="failed, timeout or abandoned.", examples=["failed"])
    type: str | None = Field(description="Type of the error.", examples=["ValueError"])
    message: str | None = Field(
        description="At most 300 characters; … stands for a text in quotes, or a word with digits.",
        examples=["invalid address …"],
    )
    last_id: int = Field(description="The execution that failed last.", examples=[4711])
    last_at: AwareDatetime


class ActionFailures(Schema):
    """The failures among the newest executions of an action, grouped by error."""

    action_ref: str
    examined: int = Field(description="Executions among which failures were counted, the newest ones.")
    failed: int = Field(description="How many of them failed.")
    items: list[FailureGroup] = Field(description=f"At most {GROUPS_MAX} groups, the most frequent first.")


class Start(NamedTuple):
    """Where executions are read backwards: below this id, or (None) from the newest one."""

    action_ref: str
    before_id: int | None


@dataclass(slots=True)
class FailureSums:
    """Sums over all actions."""

    ended: int = 0
    failed: int = 0
    actions: int = 0
    """Actions that have a failure."""

    def add(self, failures: Failures, times: int) -> None:
        """Add (1) or remove (-1) an action."""
        self.ended += times * failures.ended
        self.failed += times * failures.failed
        self.actions += times * (failures.failed > 0)


class FailureReadings:
    """What was read of each action, and what is to be read next. Not safe to share between threads."""

    def __init__(self) -> None:
        self.sums = FailureSums()
        self._of_action: dict[str, Failures] = {}
        self._due: dict[str, None] = {}
        self._heads: dict[str, dict[str | None, int]] = {}
        """By action and key: the first execution that waits."""

    def __getitem__(self, action_ref: str) -> Failures | None:
        """Return what was read of an action; None: nothing yet."""
        return self._of_action.get(action_ref)

    def failing(self) -> dict[str, Failures]:
        """Return the actions that have a failure."""
        return {ref: failures for ref, failures in self._of_action.items() if failures.failed}

    def note(self, queue: "Queue", *, has_ended: bool) -> None:
        """Note a queue that changed; `has_ended`: executions of it may have ended since it was last noted."""
        ref = queue.name.action_ref
        if has_ended:
            self._due.setdefault(ref)
        heads = self._heads.setdefault(ref, {})
        heads.pop(queue.name.concurrency_key, None)
        if queue.head_id is not None:
            heads[queue.name.concurrency_key] = queue.head_id
            if len(heads) > _HEADS_MAX:
                del heads[next(iter(heads))]

    def age(self, at: datetime, existing: Collection[str]) -> None:
        """Read again what was read a while ago, because its ends leave the window; forget deleted actions."""
        self._heads = {ref: heads for ref, heads in self._heads.items() if ref in existing}
        for ref, failures in list(self._of_action.items()):
            if ref not in existing:
                self._forget(ref)
            elif failures.ended and failures.read_at <= at - _AGED_AFTER:
                self._due.setdefault(ref)

    def starts_of(self, ref: str) -> list[Start]:
        """Return where the executions of an action are read."""
        return [Start(ref, before_id) for before_id in (None, *self._heads.get(ref, {}).values())]

    def starts(self, at: datetime) -> tuple[list[Start], int]:
        """Return where the next reading starts, and the rows of each start. None of them is due any more."""
        found: list[Start] = []
        for ref in self._due:
            known = self._of_action.get(ref)
            if known is None or known.read_at <= at - _AGAIN_AFTER:
                of_action = self.starts_of(ref)
                if len(found) + len(of_action) > STARTS_MAX:
                    break
                found += of_action
        for start in found:
            self._due.pop(start.action_ref, None)
        return found, min(ROWS_MAX // max(len(found), 1), _ROWS_OF_START_MAX)

    def put_back(self, starts: Iterable[Start]) -> None:
        """Mark these actions as due again: they could not be read."""
        for start in starts:
            self._due.setdefault(start.action_ref)

    def apply(self, starts: Sequence[Start], found: Iterable[tuple[str, Failures]]) -> None:
        """Store what was read from these starts; an action without a row was deleted."""
        for ref in {start.action_ref for start in starts}:
            self._forget(ref)
        for ref, failures in found:
            self._of_action[ref] = failures
            self.sums.add(failures, 1)

    def _forget(self, ref: str) -> None:
        before = self._of_action.pop(ref, None)
        if before is not None:
            self.sums.add(before, -1)
