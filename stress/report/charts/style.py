"""The style of all pictures: palette, size, and rendering as PNG and SVG.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish; faults are also
hatched or labelled.
"""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator

INK: Final = "#24292f"
MUTED: Final = "#6a737d"
GRID: Final = "#d8dee4"
BLUE: Final = "#0072b2"
SKY: Final = "#56b4e9"
GREEN: Final = "#009e73"
RED: Final = "#d55e00"
ORANGE: Final = "#e69f00"
PURPLE: Final = "#cc79a7"
YELLOW: Final = "#f0e442"
SERIES: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, MUTED, "#8c564b")
"""Colours of a series; never RED, which marks faults."""

WIDTH_INCHES: Final = 10.0
_DPI: Final = 120
_SVG_BYTES_MAX: Final = 60_000
_CORNER_BYTES: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture of a report."""

    name: str
    """The name of its file without extension: letters, digits and `-`."""
    title: str
    caption: str
    """An explanation for the reader."""
    alt: str
    """A text alternative."""
    png: bytes
    svg: bytes | None
    """None: it would be larger than the PNG."""

    @property
    def address(self) -> str:
        """The content as a `data:` URI."""
        kind, content = ("svg+xml", self.svg) if self.svg else ("png", self.png)
        return f"data:image/{kind};base64,{b64encode(content).decode()}"


@contextmanager
def picture_style() -> Iterator[None]:
    """Set the style of matplotlib, and restore its settings at the end."""
    with mpl.rc_context(
        {
            "font.family": ["DejaVu Sans"],
            "font.size": 9.5,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": MUTED,
            "axes.titlesize": 9.5,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "hatch.linewidth": 0.7,
            "figure.facecolor": "white",
            "svg.fonttype": "path",
            "svg.hashsalt": "turnstile",
        }
    ):
        yield


def new_figure(title: str, height_inches: float) -> Figure:
    """Return an empty figure with its title."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=_DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def as_picture(figure: Figure, *, name: str, title: str, caption: str, alt: str) -> Picture:
    """Render a figure."""
    png = BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return Picture(
        name=name, title=title, caption=caption, alt=alt, png=png.getvalue(), svg=_small_svg(figure)
    )


def count_axis(axes: Axes, *, ticks: int = 5) -> None:
    """Let the y axis show integers from 0, with thousands separators."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0)


def show_empty(axes: Axes, text: str) -> None:
    """Show a text in place of data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def _small_svg(figure: Figure) -> bytes | None:
    # Skip what cannot be small: rendering takes most of the time of a report.
    if sum(_corners(axes) for axes in figure.axes) * _CORNER_BYTES > _SVG_BYTES_MAX:
        return None
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    content = svg[svg.index("<svg") :].encode()
    return content if len(content) <= _SVG_BYTES_MAX else None


def _corners(axes: Axes) -> int:
    """Count the vertices in the SVG."""
    paths: list[Path] = [patch.get_path() for patch in axes.patches]
    for collection in axes.collections:
        paths += collection.get_paths()
    return sum(len(np.asarray(path.vertices)) for path in paths)
