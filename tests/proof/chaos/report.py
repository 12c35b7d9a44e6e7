"""The report of a run of faults: their times, the statistics, the violations, and how to repeat it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.proof.chaos.environment import VIOLATIONS
from tests.proof.chaos.findings import Course
from tests.proof.chaos.judge import Statistics
from tests.proof.chaos.run import Outcome

_SHOWN_MAX: Final = 40


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    course, statistics = outcome.course, outcome.statistics
    yield f"seed {outcome.seed}: {outcome.seconds:.0f} s of load and faults"
    yield ""
    yield from _faults(course)
    yield ""
    yield submits_line("submitted", course)
    yield f"  cancels, changes   {course.log.cancels}, {course.log.changes}"
    yield executions_line(statistics)
    yield (
        f"  grants, runs       {statistics.grants}, {statistics.runs}; {statistics.in_runs} grants beyond a "
        f"limit, in runs of a worker; {statistics.reclaims} reclaims "
        f"from {statistics.workers_lost} lost workers; "
        f"{statistics.completions_published} ends published"
    )
    yield f"  worst idle slot    {statistics.worst_idle_seconds:.1f} s"
    yield gates_line(statistics)
    yield (
        f"  drained in         {course.drained_in_seconds:.1f} s of {course.drain_seconds_max:.0f} s, "
        f"of which the backlog needs {course.backlog_seconds:.1f} s at least"
    )
    yield from violation_lines(outcome.violations, outcome.replay, outcome.folder)


def submits_line(name: str, course: Course) -> str:
    """Return how much was submitted."""
    log = course.log
    return f"  {name:17}  {len(log.sent)}, {log.confirmed} confirmed, {log.repeated} times sent again"


def executions_line(statistics: Statistics) -> str:
    """Return how many executions there were, and how they ended."""
    ends = ", ".join(f"{count} {end}" for end, count in sorted(statistics.ends.items()))
    return f"  executions         {statistics.executions}: {ends}"


def gates_line(statistics: Statistics) -> str:
    """Return how much of the guarantees of gates was checked."""
    checked = ", ".join(f"{rule} {count}" for rule, count in sorted(statistics.passages.items()))
    return f"  gates              checked {checked}"


def violation_lines(violations: Sequence[str], replay: str, folder: Path) -> Iterator[str]:
    """Yield the end of every report."""
    yield f"  violations         {len(violations) or 'none'}"
    yield from (f"    {violation}" for violation in violations[:_SHOWN_MAX])
    if len(violations) > _SHOWN_MAX:
        yield f"    and {len(violations) - _SHOWN_MAX} more, in {VIOLATIONS}"
    if violations:
        yield f"  repeat with        {replay}"
    if folder.exists():
        yield f"  logs               {folder}"


def _faults(course: Course) -> Iterator[str]:
    yield f"  {'at':>7}  {'lasted':>7}  fault"
    for injected in course.injected:
        at_seconds = (injected.began_at - course.began_at).total_seconds()
        lasted_seconds = (injected.healed_at - injected.began_at).total_seconds()
        fault = injected.fault
        yield f"  {at_seconds:5.1f} s  {lasted_seconds:5.1f} s  {fault.kind}: {fault.target}"
