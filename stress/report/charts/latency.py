"""Draws latencies: the distribution of handovers, and the cost by queue length and by number of queues."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from turnstile.stress.metrics.values import Point, RunMetrics, Spread
from turnstile.stress.report.charts.levels import Floats
from turnstile.stress.report.charts.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Picture,
    as_picture,
    count_axis,
    new_figure,
    show_empty,
)
from turnstile.stress.report.run_report import ScenarioReport

_BARS: Final = 60
_SHORTEST_MS: Final = 0.01
_HANDOVER_CAPTION: Final = (
    "The time from the stop of a run to the start of the next one, which waited for its slot, by the clocks "
    "of the actions. Each bar is 1/{bars} of the logarithmic axis."
)
_COST_CAPTION: Final = (
    "Above: executions per second; below: handover latency. If the cost of finding the head of a queue grew "
    "with its length, the curves would change to the right; they should be flat."
)


def draw_handovers(report: ScenarioReport, hand_overs_ms: Floats) -> Picture:
    """Draw a histogram of the handovers of a scenario."""
    spread = report.metrics.hand_over
    title = f"{report.scenario.title}: handovers"
    figure = new_figure(title, 3.1)
    axes = figure.subplots()
    if len(hand_overs_ms) and spread:
        _draw_bars(axes, np.maximum(hand_overs_ms, _SHORTEST_MS), longest_ms=spread.max_ms)
        _draw_percentiles(axes, spread)
    else:
        show_empty(axes, "No handovers on a full queue")
        axes.set_xticks([])
        axes.set_yticks([])
    alt = "No handovers."
    if spread:
        alt = (
            f"{spread.count:,} handovers: half within {milliseconds(spread.p50_ms)}, 99 % within "
            f"{milliseconds(spread.p99_ms)}, maximum {milliseconds(spread.max_ms)}."
        )
    caption = _HANDOVER_CAPTION.format(bars=_BARS)
    name = f"{report.scenario.name}-hand-over"
    return as_picture(figure, name=name, title=title, caption=caption, alt=alt)


def milliseconds(value: float) -> str:
    """Format a time with three digits."""
    return f"{value / 1000:,.3g} s" if value >= 1000 else f"{value:.3g} ms"


def with_plain_times(axes: Axes) -> None:
    """Set a logarithmic x axis in milliseconds with plain labels."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=30))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: milliseconds(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_bars(axes: Axes, hand_overs_ms: Floats, *, longest_ms: float) -> None:
    low, high = float(hand_overs_ms.min()) / 1.15, max(float(hand_overs_ms.max()), longest_ms) * 1.15
    edges = np.geomspace(low, high, _BARS + 1)
    count, _ = np.histogram(hand_overs_ms, edges)
    axes.stairs(count, edges, fill=True, color=SKY, alpha=0.75, linewidth=0)
    axes.stairs(count, edges, color=BLUE, linewidth=0.9)
    with_plain_times(axes)
    axes.set_xlim(low, high)
    count_axis(axes)
    axes.set_ylabel("handovers")
    if np.log10(high / low) > 2.5:
        axes.xaxis.set_major_locator(LogLocator(base=10, numticks=30))


def _draw_percentiles(axes: Axes, spread: Spread) -> None:
    lines = (
        ("p50", spread.p50_ms, GREEN),
        ("p90", spread.p90_ms, ORANGE),
        ("p99", spread.p99_ms, PURPLE),
        ("max", spread.max_ms, RED),
    )
    # Each label has its own height, so that labels of close values do not overlap.
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.5)
    for row, (name, value, color) in enumerate(lines):
        place = max(value, _SHORTEST_MS)
        height = 0.96 - 0.085 * row
        axes.axvline(place, ymax=height, color=color, linewidth=1.4)
        left = axes.transData.transform((place, 0))[0] > axes.transAxes.transform((0.82, 0))[0]
        axes.annotate(
            f"{name} {milliseconds(value)}",
            (place, height),
            xycoords=("data", "axes fraction"),
            xytext=(-5 if left else 5, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=INK,
            fontsize=9,
            # Above the line of a neighbour.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )


def draw_cost(metrics: RunMetrics) -> Picture | None:
    """Draw the cost by depth and by keys; None where neither has two points."""
    measured = [
        (points, label)
        for points, label in (
            (metrics.by_depth, "waiting in one queue"),
            (metrics.by_keys, "concurrency keys"),
        )
        if len(points) > 1
    ]
    if not measured:
        return None
    title = "Cost by queue length and by number of queues"
    figure = new_figure(title, 4.6)
    columns = figure.subplots(2, len(measured), squeeze=False, sharex="col")
    for (points, label), rate, hand_over in zip(measured, columns[0], columns[1], strict=True):
        _draw_rate(rate, points)
        _draw_handover(hand_over, points)
        _count_along(hand_over, points, label)
    columns[0][0].set_ylabel("executions per second")
    columns[1][0].set_ylabel("handover")
    figure.align_ylabels()
    alt = "; ".join(f"by {label}: {_in_label(points)}" for points, label in measured)
    return as_picture(figure, name="cost", title=title, caption=_COST_CAPTION, alt=f"Cost {alt}.")


def _draw_rate(axes: Axes, points: Sequence[Point]) -> None:
    rates = [point.executions_per_second for point in points]
    axes.plot([point.at for point in points], rates, marker="o", color=BLUE)
    count_axis(axes)
    axes.set_ylim(0, 1.25 * max(*rates, 1.0))
    for point in points:
        axes.annotate(
            f"{point.executions_per_second:,.0f}",
            (point.at, point.executions_per_second),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
        )


def _draw_handover(axes: Axes, points: Sequence[Point]) -> None:
    spreads = [(point.at, point.hand_over) for point in points if point.hand_over]
    at = [place for place, _ in spreads]
    axes.plot(at, [spread.p50_ms for _, spread in spreads], marker="o", color=BLUE, label="p50")
    axes.plot(at, [spread.p99_ms for _, spread in spreads], marker="s", color=ORANGE, label="p99")
    if spreads:
        lowest, highest = min(s.p50_ms for _, s in spreads), max(s.p99_ms for _, s in spreads)
        axes.set_yscale("log")
        axes.set_ylim(max(lowest, 0.001) / 2, max(highest, 0.001) * 2.5)
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=8))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: milliseconds(value)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.legend(loc="upper left", ncols=2)


def _count_along(axes: Axes, points: Sequence[Point], label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([point.at for point in points]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    low, high = points[0].at, points[-1].at
    margin = (high / low) ** 0.07
    axes.set_xlim(low / margin, high * margin)


def _in_label(points: Sequence[Point]) -> str:
    return ", ".join(f"{point.executions_per_second:,.0f}/s at {point.at:,}" for point in points)
