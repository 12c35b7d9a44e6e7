"""Which status changes a turn decided, for `execution.status_changed`. Pure.

In: decisions, and the ends as they were committed. Out: one change for each step of each execution, in the
order in which it happened to that execution. They are advisory: published after the commit, and lost with
the leader.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from turnstile.common.domain.states import Status
from turnstile.executor.leader.ports import StatusChanged
from turnstile.executor.leader.records import EndedRow
from turnstile.executor.queue_manager.decisions import Admitted, Decisions, Finished, Granted, Moved


def changes_of(out: Decisions, ended: Sequence[EndedRow]) -> Iterator[StatusChanged]:
    """Yield the changes of a turn; `ended` is parallel to what finished."""
    for new in out.admitted:
        status = Status.QUEUED if new.due_at is None else Status.DELAYED
        yield _change(new, None, status, 0, out.now)
    for each in out.moved:
        yield _change(each, each.previous, each.status, each.attempt, each.at)
    for finished, row in zip(out.finished, ended, strict=True):
        yield from _end(finished, row)
    for granted in out.granted:
        yield _change(granted, Status.QUEUED, Status.SCHEDULED, granted.attempt, out.now)


def _end(each: Finished, row: EndedRow) -> Iterator[StatusChanged]:
    previous = each.previous
    if previous is Status.SCHEDULED and each.started_at is not None:
        # A short attempt was not reported as started.
        yield _change(each, previous, Status.RUNNING, each.attempt, each.started_at)
        previous = Status.RUNNING
    yield _change(each, previous, row.status, each.attempt, each.completed_at)


def _change(
    of: Admitted | Moved | Finished | Granted,
    previous: Status | None,
    status: Status,
    attempt: int,
    at: float,
) -> StatusChanged:
    return StatusChanged(
        execution_id=of.id, action_ref=of.queue.action.ref, status=status, previous_status=previous,
        attempt=attempt, changed_at=datetime.fromtimestamp(at, UTC),
    )  # fmt: skip
