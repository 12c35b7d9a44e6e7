"""Draws how hand-overs are spread: from the stop of one run to the start of the next on a full queue.

In: their milliseconds. Out: a histogram over a logarithmic axis, with the percentiles marked.
"""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from turnstile.stress.figures.values import Spread
from turnstile.stress.report.plots.levels import Floats
from turnstile.stress.report.plots.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Picture,
    as_picture,
    counted,
    new_figure,
    say_nothing_there,
)
from turnstile.stress.report.run_report import StageReport

_BARS: Final = 60
_SHORTEST_MS: Final = 0.01
_CAPTION: Final = (
    "How long a free slot stood empty while the next execution waited for it: from the stop of one run to "
    "the start of the next, as the actions themselves saw it. Each bar is 1/{bars} of the (logarithmic) axis."
)


def draw_hand_over(report: StageReport, hand_overs_ms: Floats) -> Picture:
    """Draw a histogram of a stage's hand-overs."""
    spread = report.figures.hand_over
    title = f"{report.stage.title}: hand-overs"
    figure = new_figure(title, 3.1)
    axes = figure.subplots()
    if len(hand_overs_ms) and spread:
        _draw_bars(axes, np.maximum(hand_overs_ms, _SHORTEST_MS), longest_ms=spread.max_ms)
        _draw_marks(axes, spread)
    else:
        say_nothing_there(axes, "No execution waited behind another in a full queue")
        axes.set_xticks([])
        axes.set_yticks([])
    alt = "No hand-overs."
    if spread:
        alt = (
            f"{spread.count:,} hand-overs: half within {milliseconds(spread.p50_ms)}, 99 % within "
            f"{milliseconds(spread.p99_ms)}, the longest {milliseconds(spread.max_ms)}."
        )
    caption = _CAPTION.format(bars=_BARS)
    name = f"{report.stage.name}-hand-over"
    return as_picture(figure, name=name, title=title, caption=caption, alt=alt)


def milliseconds(value: float) -> str:
    """Return a time with three digits."""
    return f"{value / 1000:,.3g} s" if value >= 1000 else f"{value:.3g} ms"


def with_plain_times(axes: Axes) -> None:
    """Let a logarithmic x axis in milliseconds say its times in full."""
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
    counted(axes)
    axes.set_ylabel("hand-overs")
    if np.log10(high / low) > 2.5:
        axes.xaxis.set_major_locator(LogLocator(base=10, numticks=30))


def _draw_marks(axes: Axes, spread: Spread) -> None:
    marks = (
        ("p50", spread.p50_ms, GREEN),
        ("p90", spread.p90_ms, ORANGE),
        ("p99", spread.p99_ms, PURPLE),
        ("longest", spread.max_ms, RED),
    )
    # Each label has a height of its own, so that close values keep theirs apart.
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.5)
    for row, (name, value, color) in enumerate(marks):
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
            # Over the line of a neighbour.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )
