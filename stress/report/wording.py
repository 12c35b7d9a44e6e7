"""How values are formatted, the same on the console and on the page; None is what was not measured."""

from collections.abc import Iterator, Sequence
from typing import Final

from turnstile.stress.check.gate_rules import GATE_RULES
from turnstile.stress.check.verdict import Finding
from turnstile.stress.metrics.values import RunMetrics, Spread
from turnstile.stress.recording import Recording
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import FaultKind, Load

NOTHING: Final = "-"
"""Shown for a value that was not measured."""
SCENARIO_HEADINGS: Final = (
    "Scenario",
    "Executions",
    "Rate",
    "Limit",
    "Peak\nslots",
    "Peak\nrunning",
    "Out of\norder",
    "Hand-over\np50 / p99",
    "Violations",
)
SCENARIO_LEGEND: Final = "Peak in one queue: slots by the history, running by the actions' own clocks."
GATE_HEADINGS: Final = ("Gates", "Checked", "Violations")
COST_HEADINGS: Final = ("Cost", "Rate", "Hand-over p50 / p99")
RECOVERY_HEADINGS: Final = ("Fault", "Repaired", "Lost runs", "Reclaimed", "Stall", "Recovered")
RECOVERY_LEGEND: Final = (
    "Times count from the fault. Lost runs: ended by the fault. Reclaimed: all of them had a slot again. "
    "Stall: the longest time without a start while an execution could have started."
)


def count(value: int | None) -> str:
    """Format a number."""
    return NOTHING if value is None else f"{value:,}"


def counted(value: int, one: str) -> str:
    """Format a number with a noun."""
    return f"{value:,} {one}" + ("" if value == 1 else "s")


def rate(value: float | None) -> str:
    """Format a rate per second."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def duration(milliseconds: float | None) -> str:
    """Format a duration with about three digits."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.1f} s"


def seconds(value: float | None) -> str:
    """Format a duration given in seconds."""
    return NOTHING if value is None else duration(1000 * value)


def share(value: float | None) -> str:
    """Format a share as a percentage."""
    return NOTHING if value is None else f"{100 * value:.3g} %"


def spread(value: Spread | None) -> str:
    """Format the percentiles of a latency."""
    if value is None:
        return NOTHING
    return (
        f"p50 {duration(value.p50_ms)}, p90 {duration(value.p90_ms)}, p99 {duration(value.p99_ms)}, "
        f"max {duration(value.max_ms)}"
    )


def limit(recording: Recording) -> str:
    """Format the limit of a scenario, as a range where it was changed."""
    every = [recording.scenario.limit, *(change.limit for change in recording.limit_changes)]
    given = sorted({each for each in every if each is not None})
    if not given:
        return "none"
    upper = "none" if None in every else str(given[-1])
    return upper if upper == str(given[0]) else f"{given[0]} to {upper}"


def finding(value: Finding) -> str:
    """Format how often a rule was broken."""
    return f"{value.rule.value}: {counted(value.broken, 'violation')} in {value.checked:,}"


def metric_rows(metrics: RunMetrics) -> list[tuple[str, str]]:
    """Return the names and values of the metrics that were measured, except costs and recoveries."""
    limited = (
        "No-op executions, limited" if metrics.limit is None else f"No-op executions, limit {metrics.limit}"
    )
    violations = (
        f"order {metrics.order_violations:,}, limit {metrics.limit_violations:,},"
        f" other {metrics.other_violations:,}"
    )
    rows = [
        ("No-op executions, no limit", rate(metrics.per_second_unlimited)),
        (limited, rate(metrics.per_second_limited)),
        ("Hand-over at limit 1", spread(metrics.hand_over)),
        ("Violations", violations),
    ]
    return [row for row in rows if row[1] != NOTHING]


def cost_rows(metrics: RunMetrics) -> list[tuple[str, ...]]:
    """Return the cost of an execution at each depth and number of keys, for `COST_HEADINGS`."""
    named = [(f"{point.at:,} waiting in one queue", point) for point in metrics.by_depth]
    named += [(f"{point.at:,} {'key' if point.at == 1 else 'keys'}", point) for point in metrics.by_keys]
    return [(name, rate(point.executions_per_second), p50_p99(point.hand_over)) for name, point in named]


def fault_name(kind: FaultKind, target: str) -> str:
    """Format a fault with its target, unless the kind names the target."""
    return kind.value if target in kind.value.split() else f"{kind.value}: {target}"


def recovery_rows(metrics: RunMetrics) -> list[tuple[str, ...]]:
    """Return the recovery from each fault, for `RECOVERY_HEADINGS`."""
    return [
        (
            fault_name(each.kind, each.target),
            seconds(each.healed_seconds),
            count(each.lost_runs),
            seconds(each.reclaim_seconds),
            seconds(each.stall_seconds),
            "not observed" if each.recovered_seconds is None else seconds(each.recovered_seconds),
        )
        for each in metrics.recoveries
    ]


def p50_p99(value: Spread | None) -> str:
    """Format the median and the 99th percentile of a latency."""
    return NOTHING if value is None else f"{duration(value.p50_ms)} / {duration(value.p99_ms)}"


def scenario_rows(scenarios: Sequence[ScenarioReport]) -> list[tuple[str, ...]]:
    """Return the result of each scenario, for `SCENARIO_HEADINGS`."""
    return [
        (
            report.scenario.title,
            count(report.metrics.ended),
            rate(report.metrics.executions_per_second),
            limit(report.recording),
            count(report.metrics.peak_slots),
            count(report.metrics.peak_runs),
            count(report.out_of_order),
            p50_p99(report.metrics.hand_over),
            count(report.violations),
        )
        for report in scenarios
    ]


def gate_rows(scenarios: Sequence[ScenarioReport]) -> list[tuple[str, ...]]:
    """Return how often each rule of gates was checked and broken, for `GATE_HEADINGS`."""
    rows: list[tuple[str, ...]] = []
    for report in scenarios:
        gates = report.recording.gates
        rows += [
            (found.rule.value, count(found.checked), count(found.broken))
            for found in report.verdict.findings
            if found.rule in GATE_RULES.values() and (gates is not None or found.checked)
        ]
        if gates is not None:
            changes = counted(gates.changed, "change")
            rows.append((f"while definitions change: {changes}", NOTHING, NOTHING))
    return rows


def load_text(load: Load) -> str:
    """Describe the requests of a scenario."""
    parts = [
        f"{counted(load.executions, 'execution')} of {counted(load.actions, 'action')}",
        f"{counted(load.keys, 'concurrency key')} each" if load.keys else "",
        f"durations {load.mix}",
        counted(load.submitters, "submitter"),
        "as fast as the broker confirms them"
        if load.rate is None
        else f"{load.rate:.3g} requests per second",
    ]
    return ", ".join(part for part in parts if part)


def fact_rows(report: ScenarioReport) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the metrics of a scenario."""
    metrics = report.metrics
    per_second = rate(metrics.executions_per_second)
    yield "Ended", f"{metrics.ended:,} in {seconds(metrics.seconds)}: {per_second}"
    yield "Requests confirmed by the broker", rate(metrics.sent_per_second)
    yield (
        "Peak slots, peak running in one queue",
        f"{metrics.peak_slots:,}, {metrics.peak_runs:,}",
    )
    for name, latency in (
        ("Hand-over on a full queue", metrics.hand_over),
        ("of that: end to grant", metrics.end_to_grant),
        ("Grant to start", metrics.grant_to_start),
        ("Request to answer", metrics.answer),
    ):
        if latency is not None:
            yield name, f"{spread(latency)} ({latency.count:,})"
    if metrics.idle_share is not None:
        yield "Slots idle while executions waited", share(metrics.idle_share)
    is_by_arrival = report.scenario.limit != 1 and report.recording.gates is None
    if metrics.started_out_of_order is not None and is_by_arrival:
        late = share(metrics.started_out_of_order)
        yield "Started after a later request", f"{late} (granted in order, started concurrently)"
