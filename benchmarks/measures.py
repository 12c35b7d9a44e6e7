"""What a part measured: a small matrix with a unit for each row and, where there is one, an aim.

In: numbers of one run. Out: `Section`s, which `report` prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A bound on the named columns of a row; without names on all of them."""

    at_least: float | None = None
    at_most: float | None = None
    columns: tuple[str, ...] = ()

    def allows(self, value: float) -> bool:
        """Whether a value keeps it."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity, by column. A column that is absent was not measured or means nothing here."""

    name: str
    unit: str
    cells: Mapping[str, float]
    aims: tuple[Aim, ...] = ()

    def meets_aims(self) -> bool | None:
        """Whether every cell under an aim keeps it; None where nothing is aimed at."""
        kept = [
            aim.allows(value)
            for aim in self.aims
            for column, value in self.cells.items()
            if not aim.columns or column in aim.columns
        ]
        return all(kept) if kept else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that `percent` of the values do not exceed."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]
