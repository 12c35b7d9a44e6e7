"""Draws what an execution costs as lines grow longer, and as queues grow more: flat is what should be seen.

In: the points that were measured. Out: for each of the two, the rate above and the hand-over below.
"""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from turnstile.stress.figures.values import FiveFigures, Point
from turnstile.stress.report.plots.handover import milliseconds
from turnstile.stress.report.plots.style import BLUE, ORANGE, Picture, as_picture, counted, new_figure

_CAPTION: Final = (
    "Above, executions a second; below, hand-overs. A system that read its line from the front would "
    "slow down to the right; one that finds the head of a line at once stays level."
)


def draw_cost(five: FiveFigures) -> Picture | None:
    """Draw the cost by depth and by keys; None where fewer than two points of either were measured."""
    measured = [
        (points, words)
        for points, words in ((five.by_depth, "waiting in one queue"), (five.by_keys, "concurrency keys"))
        if len(points) > 1
    ]
    if not measured:
        return None
    title = "What length and number of queues cost"
    figure = new_figure(title, 4.6)
    columns = figure.subplots(2, len(measured), squeeze=False, sharex="col")
    for (points, words), rate, hand_over in zip(measured, columns[0], columns[1], strict=True):
        _draw_rate(rate, points)
        _draw_hand_over(hand_over, points)
        _count_along(hand_over, points, words)
    columns[0][0].set_ylabel("executions a second")
    columns[1][0].set_ylabel("hand-over")
    figure.align_ylabels()
    alt = "; ".join(f"by {words}: {_in_words(points)}" for points, words in measured)
    return as_picture(figure, name="cost", title=title, caption=_CAPTION, alt=f"Cost {alt}.")


def _draw_rate(axes: Axes, points: Sequence[Point]) -> None:
    rates = [point.executions_per_second for point in points]
    axes.plot([point.at for point in points], rates, marker="o", color=BLUE)
    counted(axes)
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


def _draw_hand_over(axes: Axes, points: Sequence[Point]) -> None:
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


def _count_along(axes: Axes, points: Sequence[Point], words: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([point.at for point in points]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(words)
    low, high = points[0].at, points[-1].at
    margin = (high / low) ** 0.07
    axes.set_xlim(low / margin, high * margin)


def _in_words(points: Sequence[Point]) -> str:
    return ", ".join(f"{point.executions_per_second:,.0f}/s at {point.at:,}" for point in points)
