"""The style of all pictures: palette, size, and rendering as PNG.

The colours are those of Okabe and Ito, which people with any colour vision can distinguish; faults are also
hatched or labelled.
"""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
SERIES: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, "#f0e442", MUTED, "#8c564b")
"""Colours of a series; never RED, which marks faults."""

_WIDTH_INCHES: Final = 10.0
_DPI: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture of a report."""

    name: str
    """The name of its file without extension: letters, digits and `-`."""
    caption: str
    """An explanation for the reader."""
    alt: str
    """A text alternative."""
    png: bytes

    @property
    def address(self) -> str:
        """The content as a `data:` URI."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


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
        }
    ):
        yield


def new_figure(title: str, height_inches: float) -> Figure:
    """Return an empty figure with its title."""
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), dpi=_DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def as_picture(figure: Figure, *, name: str, caption: str, alt: str) -> Picture:
    """Render a figure."""
    png = BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return Picture(name=name, caption=caption, alt=alt, png=png.getvalue())


def count_axis(axes: Axes) -> None:
    """Let the y axis show integers from 0, with thousands separators."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0)


def show_empty(axes: Axes, text: str) -> None:
    """Show a text in place of data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
