"""What came of a run beside neighbours, for people: who disturbed when, how the others fared, what was wrong.

In: an `Outcome`. Out: text.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.proof.chaos.folder import VIOLATIONS
from tests.proof.chaos.neighbours.run import Outcome
from tests.proof.chaos.neighbours.schedule import Kind
from tests.proof.chaos.neighbours.verdict import delivery_seconds, percentile, starts_alone, starts_during
from tests.proof.chaos.neighbours.watching import memory_limits

_SHOWN_MAX: Final = 40


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"seed {outcome.seed}: {outcome.shape.seconds:.0f} s of steady load beside neighbours"
    yield ""
    yield from _neighbours(outcome)
    yield ""
    yield from _kinds(outcome)
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


def _neighbours(outcome: Outcome) -> Iterator[str]:
    yield f"  {'at':>7}  {'lasted':>7}  neighbour"
    for each in outcome.suffered.disturbed:
        at_seconds = (each.began_at - outcome.course.began_at).total_seconds()
        lasted_seconds = (each.ended_at - each.began_at).total_seconds()
        did = ", ".join(f"{count} {what}" for what, count in sorted(each.did.items()))
        yield f"  {at_seconds:5.1f} s  {lasted_seconds:5.1f} s  {each.disturbance}: {did or 'nothing'}"


def _kinds(outcome: Outcome) -> Iterator[str]:
    yield f"  {'starts':>7}  {'p50':>7}  {'p99':>7}  {'worst':>7}  submitted beside"
    parts = {str(kind): starts_during(outcome.suffered, kind) for kind in Kind}
    parts["nobody"] = starts_alone(outcome.suffered)
    parts["in all"] = list(outcome.suffered.starts)
    for name, starts in parts.items():
        seconds = [start.seconds for start in starts]
        if seconds:
            p50, p99, worst = (percentile(seconds, share) for share in (0.5, 0.99, 1.0))
            yield f"  {len(seconds):7}  {p50:5.2f} s  {p99:5.2f} s  {worst:5.2f} s  {name}"


def _figures(outcome: Outcome) -> Iterator[str]:
    course, figures, watch = outcome.course, outcome.figures, outcome.suffered.watch
    confirmed = sum(sent.confirmed_at is not None for sent in course.log.sent.values())
    ends = ", ".join(f"{count} {end}" for end, count in sorted(figures.ends.items()))
    sent, repeated = len(course.log.sent), course.log.repeated
    yield f"  steady submits     {sent}, {confirmed} confirmed, {repeated} times sent again"
    yield f"  executions         {figures.executions}: {ends}"
    delivered = list(delivery_seconds(outcome.suffered).values())
    yield (
        f"  webhooks           {len(delivered)}, p99 {percentile(delivered, 0.99):.2f} s, "
        f"worst {max(delivered, default=0.0):.2f} s after the end"
    )
    slowest: defaultdict[str, float] = defaultdict(float)
    for probe in watch.probes:
        slowest[probe.service] = max(slowest[probe.service], probe.seconds)
    yield "  worst /livez       " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest.items())
    limits = memory_limits()
    yield "  most memory        " + ", ".join(
        f"{name} {peak.memory_bytes >> 20} of {limits[name.partition('-')[0]] >> 20} MB"
        for name, peak in watch.peaks.items()
    )
    yield f"  worst idle slot    {figures.worst_idle_seconds:.1f} s"
    yield f"  drained in         {course.drained_in_seconds:.1f} s"
    yield f"  harness late by    {watch.worst_lag_seconds:.2f} s at most"
