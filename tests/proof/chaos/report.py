"""What came of a run, for people: the faults with their times, the figures, the violations, how to replay it.

In: an `Outcome`. Out: text.
"""

from collections.abc import Iterator
from typing import Final

from tests.proof.chaos.folder import VIOLATIONS
from tests.proof.chaos.outcome import Outcome
from tests.proof.chaos.run import DRAIN_BOUND_SECONDS, Course

_SHOWN_MAX: Final = 40


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"seed {outcome.seed}: {outcome.shape.seconds:.0f} s of load and faults"
    yield ""
    yield from _faults(outcome.course)
    yield ""
    yield from _figures(outcome)
    yield f"  violations         {len(outcome.violations) or 'none'}"
    yield from (f"    {violation}" for violation in outcome.violations[:_SHOWN_MAX])
    if len(outcome.violations) > _SHOWN_MAX:
        yield f"    and {len(outcome.violations) - _SHOWN_MAX} more, in {VIOLATIONS}"
    if outcome.violations:
        yield f"  the same again     {outcome.replay}"
    if outcome.folder.exists():
        yield f"  logs, recording    {outcome.folder}"


def _figures(outcome: Outcome) -> Iterator[str]:
    course, figures, log = outcome.course, outcome.figures, outcome.course.log
    confirmed = sum(sent.confirmed_at is not None for sent in log.sent.values())
    ends = ", ".join(f"{count} {end}" for end, count in sorted(figures.ends.items()))
    yield f"  submitted          {len(log.sent)}, {confirmed} confirmed, {log.repeated} times sent again"
    yield f"  cancels, changes   {log.cancels}, {log.changes}"
    yield f"  executions         {figures.executions}: {ends}"
    yield (
        f"  grants, runs       {figures.grants}, {figures.runs}; {figures.reclaims} reclaims "
        f"from {figures.workers_lost} lost workers; {figures.completions_told} completions told"
    )
    yield f"  worst slot leak    {figures.worst_slot_leak_seconds:.1f} s"
    yield f"  worst reclaim      {figures.worst_reclaim_seconds:.1f} s"
    yield f"  worst idle slot    {figures.worst_idle_seconds:.1f} s"
    yield f"  drained in         {course.drained_in_seconds:.1f} s of {DRAIN_BOUND_SECONDS:.0f} s"


def _faults(course: Course) -> Iterator[str]:
    yield f"  {'at':>7}  {'lasted':>7}  fault"
    for injected in course.injected:
        at_seconds = (injected.began_at - course.began_at).total_seconds()
        lasted_seconds = (injected.healed_at - injected.began_at).total_seconds()
        fault = injected.fault
        yield f"  {at_seconds:5.1f} s  {lasted_seconds:5.1f} s  {fault.kind}: {fault.target}"
