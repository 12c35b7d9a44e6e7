"""`executor history`: what executions did over time, by action or by point of time."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.arguments import option
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    instant,
    print_line,
    print_more,
    print_table,
    show,
)

WINDOWS: Final = ("1h", "24h", "7d")
_BARS: Final = " ▁▂▃▄▅▆▇█"


def failed_of(counts: Json) -> int:
    """Return how many executions ended as failures."""
    failed: int = counts["failed"] + counts["timeout"] + counts["abandoned"]
    return failed


def ended_of(counts: Json) -> int:
    """Return how many executions ended, with any status."""
    ended: int = failed_of(counts) + counts["completed"] + counts["cancelled"] + counts["expired"]
    return ended


def short_duration(seconds: float | None) -> str:
    """Return a percentile with two or three digits."""
    if seconds is None:
        return "-"
    if seconds >= 60:
        return format_duration(round(seconds))
    return f"{seconds:.1f}s" if seconds >= 1 else f"{1000 * seconds:.0f}ms"


def bars(values: Sequence[float]) -> str:
    """Return a picture of values, one character each: the largest one is a full bar, and 0 is a space."""
    most = max(values, default=0) or 1
    return "".join(_BARS[-int(-value * (len(_BARS) - 1) // most)] for value in values)


def _percentile(field: str) -> Callable[[Json], str]:
    return lambda counts: short_duration(counts[field])


_COUNTS: Final[Columns] = {
    "ADMITTED": "admitted",
    "STARTED": "started",
    "ENDED": ended_of,
    "FAILED": failed_of,
    "WAITING P50": _percentile("waiting_p50_seconds"),
    "WAITING P95": _percentile("waiting_p95_seconds"),
    "RUNNING P50": _percentile("running_p50_seconds"),
    "RUNNING P95": _percentile("running_p95_seconds"),
    "SLOTS": lambda counts: f"{counts['slots_used']:.1f}",
}
_OF_ACTIONS: Final[Columns] = {"ACTION": lambda each: each.get("action_ref", "(all)"), **_COUNTS}
_OF_POINTS: Final[Columns] = {"SINCE": lambda point: instant(point["at"]), **_COUNTS}


@with_api
def history(
    api: Api,
    *,
    window: Annotated[str, option("|".join(WINDOWS), "What to add up, until now.")] = "1h",
    action: Annotated[str | None, option("REF", "Only this action: its points of time.")] = None,
    points: Annotated[
        bool, typer.Option("--points", help="The points of time of all actions together.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what executions did over time: throughput, failures, waiting and run times, slots in use.

    One row for each action, the busiest first; with --action or --points one for each minute, ten minutes of
    24h, or hour of 7d. ENDED counts every status, FAILED those that ended as failed, timeout or abandoned.
    WAITING is the time until the first start, RUNNING that of the last attempt, SLOTS the mean of those in
    use. The last whole minute is the newest.
    """
    found = api.get("/history", {"window": window, "action_ref": action})
    show(found, _print_points if points or action is not None else _print_actions, as_json=as_json)


def _print_actions(found: Json) -> None:
    print_table(_OF_ACTIONS, [*found["actions"], found["totals"]], empty="")
    _print_window(found)


def _print_points(found: Json) -> None:
    print_table(_OF_POINTS, filter(_is_busy, found["points"]), empty="Nothing ran")
    print_more(_OF_ACTIONS, [found["totals"]])
    _print_window(found)


def _is_busy(point: Json) -> bool:
    return any((point["admitted"], point["started"], ended_of(point), point["slots_used"]))


def _print_window(found: Json) -> None:
    print_line("")
    ended = bars([ended_of(point) for point in found["points"]])
    print_line(f"ended |{ended}| {instant(found['from'])} to {instant(found['until'])}")
