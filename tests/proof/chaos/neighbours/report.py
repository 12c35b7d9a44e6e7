"""The report of a run beside neighbours: their times, the starts of the steady load, the violations."""

from collections import defaultdict
from collections.abc import Iterator

from tests.proof.chaos.neighbours.monitor import memory_limits
from tests.proof.chaos.neighbours.run import Outcome
from tests.proof.chaos.neighbours.schedule import Kind
from tests.proof.chaos.neighbours.verdict import delivery_seconds, starts_alone, starts_during
from tests.proof.chaos.report import executions_line, gates_line, submits_line, violation_lines
from turnstile.stress.check.counts import percentile


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"seed {outcome.seed}: {outcome.seconds:.0f} s of steady load beside neighbours"
    yield ""
    yield from _neighbours(outcome)
    yield ""
    yield from _kinds(outcome)
    yield ""
    yield from _statistics(outcome)
    yield from violation_lines(outcome.violations, outcome.replay, outcome.folder)


def _neighbours(outcome: Outcome) -> Iterator[str]:
    yield f"  {'at':>7}  {'lasted':>7}  neighbour"
    for each in outcome.effects.disturbed:
        at_seconds = (each.began_at - outcome.course.began_at).total_seconds()
        lasted_seconds = (each.ended_at - each.began_at).total_seconds()
        did = ", ".join(f"{count} {what}" for what, count in sorted(each.did.items()))
        yield f"  {at_seconds:5.1f} s  {lasted_seconds:5.1f} s  {each.disturbance}: {did or 'nothing'}"


def _kinds(outcome: Outcome) -> Iterator[str]:
    yield f"  {'starts':>7}  {'p50':>7}  {'p99':>7}  {'worst':>7}  submitted beside"
    parts = {str(kind): starts_during(outcome.effects, kind) for kind in Kind}
    parts["none"] = starts_alone(outcome.effects)
    parts["in all"] = list(outcome.effects.starts)
    for name, starts in parts.items():
        seconds = [start.seconds for start in starts]
        if seconds:
            p50, p99, worst = (percentile(seconds, share) or 0.0 for share in (0.5, 0.99, 1.0))
            yield f"  {len(seconds):7}  {p50:5.2f} s  {p99:5.2f} s  {worst:5.2f} s  {name}"


def _statistics(outcome: Outcome) -> Iterator[str]:
    course, statistics, observed = outcome.course, outcome.statistics, outcome.effects.observed
    yield submits_line("steady submits", course)
    yield executions_line(statistics)
    yield gates_line(statistics)
    delivered = list(delivery_seconds(outcome.effects).values())
    yield (
        f"  webhooks           {len(delivered)}, p99 {percentile(delivered, 0.99) or 0.0:.2f} s, "
        f"worst {max(delivered, default=0.0):.2f} s after the end"
    )
    slowest: defaultdict[str, float] = defaultdict(float)
    for probe in observed.probes:
        slowest[probe.service] = max(slowest[probe.service], probe.seconds)
    yield "  worst /livez       " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest.items())
    limits = memory_limits()
    yield "  most memory        " + ", ".join(
        f"{name} {peak.memory_bytes >> 20} of {limits[name.partition('-')[0]] >> 20} MB"
        for name, peak in observed.peaks.items()
    )
    yield f"  worst idle slot    {statistics.worst_idle_seconds:.1f} s"
    yield f"  drained in         {course.drained_in_seconds:.1f} s"
    yield f"  harness late by    {observed.worst_lag_seconds:.2f} s at most"
