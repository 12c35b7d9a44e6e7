"""How figures are said, the same on the console and on the page.

In: numbers as they were measured; None is what was not. Out: words with their unit.
"""

from typing import Final

from turnstile.stress.check.verdict import Finding
from turnstile.stress.figures.values import FiveFigures, Recovery, Spread
from turnstile.stress.recording import Recording
from turnstile.stress.stage import FaultKind

NOTHING: Final = "-"
COST_HEADINGS: Final = ("Cost", "Rate", "Hand-over p50", "p99")
RECOVERY_HEADINGS: Final = ("Fault", "Whole again", "Cut off", "Back", "Stall", "As before")
RECOVERY_LEGEND: Final = (
    "Seconds count from the fault. Cut off: runs that it ended. Back: all of them had their slots again. "
    "Stall: the longest time in which nothing started though something could have."
)


def count(value: int | None) -> str:
    """Say how many."""
    return NOTHING if value is None else f"{value:,}"


def counted(value: int, one: str) -> str:
    """Say how many of what there are."""
    return f"{value:,} {one}" + ("" if value == 1 else "s")


def rate(value: float | None) -> str:
    """Say how many in a second."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def duration(milliseconds: float | None) -> str:
    """Say how long something took, with about three digits."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.1f} s"


def seconds(value: float | None) -> str:
    """Say how long something took, measured in seconds."""
    return NOTHING if value is None else duration(1000 * value)


def share(value: float | None) -> str:
    """Say a part of a whole."""
    return NOTHING if value is None else f"{100 * value:.3g} %"


def spread(value: Spread | None) -> str:
    """Say how a latency is spread."""
    if value is None:
        return NOTHING
    return (
        f"p50 {duration(value.p50_ms)}, p90 {duration(value.p90_ms)}, p99 {duration(value.p99_ms)}, "
        f"longest {duration(value.max_ms)}"
    )


def limit(recording: Recording) -> str:
    """Say under which limit a stage ran; two where it was changed meanwhile."""
    every = [recording.stage.limit, *(change.limit for change in recording.limit_changes)]
    given = sorted({each for each in every if each is not None})
    if not given:
        return "none"
    upper = "none" if None in every else str(given[-1])
    return upper if upper == str(given[0]) else f"{given[0]} to {upper}"


def finding(value: Finding) -> str:
    """Say how often a rule was broken."""
    times = "once" if value.broken == 1 else f"{value.broken:,} times"
    return f"{value.rule.value}: broken {times} in {value.looked_at:,}"


def five_rows(five: FiveFigures) -> list[tuple[str, str]]:
    """Return the figures of one number or one spread, each with its name, as far as they were measured."""
    limited = "The same under a limit" if five.limit is None else f"The same, limit {five.limit}"
    violations = (
        f"order {five.order_violations:,}, limit {five.limit_violations:,}, other {five.other_violations:,}"
    )
    rows = [
        ("No-op executions, no limit", rate(five.per_second_unlimited)),
        (limited, rate(five.per_second_limited)),
        ("Hand-over at limit 1", spread(five.hand_over)),
        ("Violations", violations),
    ]
    return [row for row in rows if row[1] != NOTHING]


def cost_rows(five: FiveFigures) -> list[tuple[str, ...]]:
    """Return what an execution costs at each depth and number of keys, under `COST_HEADINGS`."""
    named = [(f"{point.at:,} waiting in one queue", point) for point in five.by_depth]
    named += [(f"{point.at:,} {'key' if point.at == 1 else 'keys'}", point) for point in five.by_keys]
    return [(name, rate(point.executions_per_second), *ends(point.hand_over)) for name, point in named]


def fault_name(kind: FaultKind, target: str) -> str:
    """Say what was broken: the target, where the kind does not name it."""
    return kind.value if target in kind.value.split() else f"{kind.value}: {target}"


def recovery_row(value: Recovery) -> tuple[str, ...]:
    """Return how one fault was felt, under `RECOVERY_HEADINGS`."""
    return (
        fault_name(value.kind, value.target),
        seconds(value.healed_seconds),
        count(value.lost_runs),
        seconds(value.reclaim_seconds),
        seconds(value.stall_seconds),
        "not seen" if value.recovered_seconds is None else seconds(value.recovered_seconds),
    )


def ends(value: Spread | None) -> tuple[str, str]:
    """Say the middle and the slow end of a latency."""
    return (NOTHING, NOTHING) if value is None else (duration(value.p50_ms), duration(value.p99_ms))
