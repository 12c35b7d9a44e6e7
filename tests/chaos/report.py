"""What came of a run, for people: the faults with their times, the figures, the violations, how to replay it.

In: an `Outcome`. Out: text.
"""

from collections.abc import Iterator

from tests.chaos.outcome import Outcome
from tests.chaos.run import DRAIN_BOUND_SECONDS, Course


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    course, figures = outcome.course, outcome.figures
    yield f"seed {outcome.seed}: {outcome.shape.seconds:.0f} s of load and faults"
    yield ""
    yield from _faults(course)
    yield ""
    log = course.log
    confirmed = sum(sent.confirmed_at is not None for sent in log.sent.values())
    yield (
        f"  submitted {len(log.sent)}, confirmed {confirmed}, sent again {log.repeated}; "
        f"cancels {log.cancels}, changes {log.changes}"
    )
    yield "  executions by end: " + ", ".join(f"{count} {end}" for end, count in sorted(outcome.ends.items()))
    yield f"  drained in {course.drained_in_seconds:.1f} s (bound {DRAIN_BOUND_SECONDS:.0f} s)"
    for name, value in figures.items():
        yield f"  {name}: {value}"
    yield f"  violations: {len(outcome.violations)}"
    yield from (f"    {violation}" for violation in outcome.violations)
    if outcome.violations:
        yield f"  logs and recording: {outcome.folder}"
        yield f"  the same load and faults again: {outcome.replay}"


def _faults(course: Course) -> Iterator[str]:
    yield f"  {'at':>7}  {'lasted':>7}  fault"
    for injected in course.injected:
        at_seconds = (injected.began_at - course.began_at).total_seconds()
        lasted_seconds = (injected.healed_at - injected.began_at).total_seconds()
        fault = injected.fault
        what = fault.kind if fault.kind.startswith(fault.target.partition("-")[0]) else f"{fault.kind}"
        yield f"  {at_seconds:5.1f} s  {lasted_seconds:5.1f} s  {what}: {fault.target}"
