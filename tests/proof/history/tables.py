"""A recording of the four witnesses as tables, for the rules of `turnstile.stress.check` on any history.

Instants are nanoseconds since 1970, as the database's clock has them. Delayed, failed and rejected executions
are expected here, so the rules that expect every execution to be completed do not apply.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from tests.proof.history.recording import Bounds, QueueEvent, Recording, Submitted, moment, nanoseconds
from tests.proof.history.replay import attempts_of, gated_queues, transitions_of
from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.check.history import FOREIGN, History
from turnstile.stress.check.limits import ALWAYS, LimitPeriod, LimitTimeline
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    NONE,
    ORDER,
    RUN,
    Answer,
    Outcome,
    RunEnd,
    Table,
    empty,
    status_code,
)

_CLOCK_SLACK_NS: Final = 50_000_000
"""Two clocks of one machine, one of which is being adjusted."""


def history_of(recording: Recording, bounds: Bounds) -> History:
    """Return what was recorded; `bounds` says for how long a run may outlive the reclaim of its attempt."""
    sent = sorted(recording.submitted, key=lambda each: (each.submitter, each.number))
    numbers = {each.tag: number for number, each in enumerate(sent)}
    executions = np.array(list(_executions(recording, numbers)), EXECUTION)
    attempts, runs_until = _attempts(recording, bounds)

    def request_text(number: int) -> str:
        return f"number {sent[number].number} of {sent[number].submitter}, {sent[number].tag},"

    return History(
        orders=_orders(sent, executions),
        executions=executions,
        attempts=attempts,
        runs=np.array(list(_runs(recording, executions)), RUN),
        limits=LimitTimeline(at_first=UNLIMITED, keys=1, changed=_limits(recording)),
        runs_until=np.array(runs_until, np.int64),
        time_text=lambda instant: f"{moment(int(instant)):%H:%M:%S.%f}",
        request_text=request_text,
        tolerance_ns=_CLOCK_SLACK_NS,
        flawless=False,
    )


def _executions(recording: Recording, numbers: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    for execution_id, transitions in sorted(transitions_of(recording.events).items()):
        first, last = transitions[0], transitions[-1]
        status = last.status or last.previous
        assert status is not None
        number = FOREIGN if first.tag is None else numbers.get(first.tag, NONE)
        created_at, ended_at = nanoseconds(first.stamp.at), nanoseconds(last.stamp.at)
        yield execution_id, number, last.queue_id, status_code(status), last.attempt, created_at, ended_at


def _orders(sent: Sequence[Submitted], executions: Table) -> Table:
    """Return the requests; there is one order for each submitter and queue."""
    orders = empty(ORDER, len(sent))
    queues = dict(zip(executions["number"].tolist(), executions["queue"].tolist(), strict=True))
    senders: dict[tuple[str, int], int] = {}
    for number, each in enumerate(sent):
        queue = queues.get(number, NONE)
        orders["submitter"][number] = senders.setdefault((each.submitter, queue), len(senders))
        orders["queue"][number] = queue
        orders["confirmed_at"][number] = 0 if each.confirmed else NEVER
        if each.execution_id is not None:
            orders["answer"][number], orders["execution_id"][number] = Answer.ACCEPTED, each.execution_id
        if each.refused:
            orders["answer"][number] = Answer.REJECTED
    orders["sendings"] = 1
    return orders


def _attempts(recording: Recording, bounds: Bounds) -> tuple[Table, list[int]]:
    """Return the attempts that were granted, and until when the run of each may last."""
    rows, runs_until = [], []
    for (execution_id, number), attempt in sorted(attempts_of(recording.events).items()):
        if not attempt.grants:
            continue
        grant = attempt.grants[0]
        granted_at = nanoseconds(grant.stamp.at)
        claimed_at = nanoseconds(attempt.claims[0].stamp.at) if attempt.claims else NEVER
        ended_at = NEVER if attempt.end is None else nanoseconds(attempt.end.stamp.at)
        outcome = Outcome.RECLAIMED if attempt.ended_by_executor else Outcome.ENDED
        times = granted_at, granted_at, claimed_at, ended_at
        rows.append((execution_id, number, grant.queue_id, *times, outcome, NONE))
        runs_until.append(bounds.overlap_until(ended_at) if attempt.ended_by_executor else ended_at)
    return np.array(rows, ATTEMPT), runs_until


def _runs(recording: Recording, executions: Table) -> Iterator[tuple[int, ...]]:
    known = {row["execution_id"].item(): row for row in executions}
    for run in recording.runs:
        execution = known.get(run.execution_id)
        number, queue = (NONE, NONE) if execution is None else (execution["number"], execution["queue"])
        stopped_at = NEVER if run.stopped_ns is None else recording.instant(run.stopped_ns)
        end = RunEnd.UNKNOWN if run.stopped_ns is None else RunEnd.STOPPED
        times = recording.instant(run.started_ns), stopped_at
        yield number, run.execution_id, run.attempt, queue, run.pid, *times, end


def _limits(recording: Recording) -> Mapping[int, tuple[LimitPeriod, ...]]:
    """Return the limits of the queues without other gates; see `gated_queues`."""
    changes: dict[int, list[QueueEvent]] = {}
    gated = gated_queues(recording.events)
    for event in recording.events:
        if isinstance(event, QueueEvent) and event.queue_id not in gated:
            changes.setdefault(event.queue_id, []).append(event)
    return {queue_id: tuple(_periods(own)) for queue_id, own in changes.items()}


def _periods(changes: Iterable[QueueEvent]) -> Iterator[LimitPeriod]:
    changes = list(changes)
    since = [ALWAYS, *(nanoseconds(change.stamp.at) for change in changes[1:])]
    for change, begins, ends in zip(changes, since, [*since[1:], NEVER], strict=True):
        yield LimitPeriod(UNLIMITED if change.limit is None else change.limit, begins, ends)
