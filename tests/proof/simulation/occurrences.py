"""The rule of schedules: each occurrence that the policy admits is one execution, in time.

In: the definition, the executions with keys of its occurrences, what the installation counts, and up to when
it has decided. Out: a sentence for each thing that is wrong. The occurrences are computed again from the
definition. What an outage leaves out is allowed only as `catch_up` says; what an overlap leaves out, only
while the execution before had not ended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from turnstile.common.schedules import ScheduleDefinition

_CLOCK_SECONDS: Final = 0.001
"""Instants are stored in microseconds, and compared with those of another clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledExecution:
    """One execution of a schedule."""

    id: int
    occurrence: int
    created_at: float
    completed_at: float | None
    is_cancelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCounts:
    """What the installation says of a schedule."""

    admitted: int
    skipped: int


def occurrences_kept(
    schedule: ScheduleDefinition,
    executions: Sequence[ScheduledExecution],
    counts: ScheduleCounts,
    *,
    since: int,
    until: int,
    within_seconds: float,
) -> Iterator[str]:
    """Yield what is broken of the occurrences after `since` and up to `until`, of which none was missed.

    `within_seconds`: an occurrence is admitted so long after its instant at the latest.
    """
    expected, at = [], since
    while (following := schedule.next_after(at)) is not None and following <= until:
        expected.append(at := following)
    found = sorted(executions, key=lambda each: each.id)
    admitted = [each.occurrence for each in found]
    if admitted != sorted(set(admitted)):
        yield f"{schedule.name}: an occurrence has two executions, or a later one came first: {admitted}"
    if strays := sorted(set(admitted) - set(expected)):
        yield f"{schedule.name}: executions of {strays}, which are no occurrences"
    for each in found:
        earliest = schedule.due_at(each.occurrence) - _CLOCK_SECONDS
        if not earliest <= each.created_at <= each.occurrence + within_seconds:
            yield f"{schedule.name}: the occurrence {each.occurrence} was admitted at {each.created_at}"
    left_out = sorted(set(expected) - set(admitted))
    if left_out and schedule.overlap != "skip":
        yield f"{schedule.name}: the occurrences {left_out} have no execution"
    if (counts.admitted, counts.skipped) != (len(found), len(left_out)):
        yield (
            f"{schedule.name}: {len(found)} occurrences have an execution and {len(left_out)} have none, and"
            f" {counts} is counted"
        )
    if schedule.overlap != "queue":
        yield from _overlaps(schedule, found)


def _overlaps(schedule: ScheduleDefinition, found: Sequence[ScheduledExecution]) -> Iterator[str]:
    for before, after in pairwise(found):
        if before.completed_at is None or before.completed_at > after.created_at + _CLOCK_SECONDS:
            yield f"{schedule.name}: execution {after.id} was admitted before {before.id} had ended"
        if schedule.overlap == "skip" and before.is_cancelled:
            yield f"{schedule.name}: execution {before.id} was cancelled"
