"""Results of a part as tables, with units and aims: printed, as Markdown and as JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Final

from rich.console import Console
from rich.table import Table

from turnstile.stress.check.counts import percentile

DELAY_COLUMNS: Final = ("p50", "p90", "p99", "max")
_LIBRARIES: Final = ("aio-pika", "aiormq", "asyncpg", "uvloop")
_PAGE_WIDTH: Final = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A bound on the named columns of a row, or on all of them."""

    at_least: float | None = None
    at_most: float | None = None
    columns: tuple[str, ...] = ()

    def allows(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity, by column; a missing column was not measured or does not apply."""

    name: str
    unit: str = ""
    cells: Mapping[str, float]
    aims: tuple[Aim, ...] = ()

    def meets_aims(self) -> bool | None:
        """Whether every cell with an aim meets it; None where there is no aim."""
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


def delay_row(name: str, seconds: Sequence[float], aims: tuple[Aim, ...]) -> Row:
    """Return the row of these durations, with the columns `DELAY_COLUMNS`."""
    ms = [1000 * each for each in seconds]
    cells = {f"p{percent}": percentile(ms, percent / 100) or 0.0 for percent in (50, 90, 99)}
    return Row(name=name, unit="ms", cells={**cells, "max": max(ms)}, aims=aims)


def print_section(console: Console, section: Section) -> None:
    """Print one table."""
    table = Table(title=section.title, title_justify="left", title_style="bold", caption_justify="left")
    table.caption = section.note or None
    table.add_column("")
    for column in section.columns:
        table.add_column(column, justify="right")
    for column in _notes(section):
        table.add_column(column)
    styles = {True: "green", False: "red", None: ""}
    for row in section.rows:
        table.add_row(*_cells(section, row), style=styles[row.meets_aims()])
    console.print(table)


def console() -> Console:
    """Return standard output; wide enough for every table where it is not a terminal."""
    return Console(width=None if Console().is_terminal else _PAGE_WIDTH, highlight=False)


def markdown(sections: Sequence[Section], facts: Mapping[str, str]) -> str:
    """Return all sections as Markdown tables, below a line with the facts that results depend on."""
    lines = [", ".join(f"{name} {value}" for name, value in facts.items()), ""]
    for section in sections:
        lines += [f"### {section.title}", ""]
        notes = _notes(section)
        lines.append("| | " + " | ".join([*section.columns, *notes]) + " |")
        lines.append("|---|" + "---:|" * len(section.columns) + "---|" * len(notes))
        lines += ["| " + " | ".join(_cells(section, row)) + " |" for row in section.rows]
        lines += ["", section.note, ""] if section.note else [""]
    return "\n".join(lines).rstrip() + "\n"


def as_json(sections: Sequence[Section]) -> str:
    """Return all sections as JSON."""
    return json.dumps({"machine": machine(), "sections": [asdict(s) for s in sections]}, indent=2) + "\n"


def machine(*more_libraries: str) -> dict[str, str]:
    """Return the facts that results depend on."""
    return {
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{library: version(library) for library in (*_LIBRARIES, *more_libraries)},
    }


def _notes(section: Section) -> list[str]:
    """Return the columns after the values, without those that are empty in all rows."""
    needed = {"unit": any(row.unit for row in section.rows), "aim": any(row.aims for row in section.rows)}
    return [name for name, is_needed in needed.items() if is_needed]


def _cells(section: Section, row: Row) -> list[str]:
    notes = {"unit": row.unit, "aim": _aims(row)}
    values = [_number(row.cells.get(column)) for column in section.columns]
    return [row.name, *values, *(notes[name] for name in _notes(section))]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _aims(row: Row) -> str:
    bounds = [_bound(aim) for aim in row.aims]
    return ", ".join(bounds) + {True: ": met", False: ": MISSED", None: ""}[row.meets_aims()]


def _bound(aim: Aim) -> str:
    sign, value = ("≤", aim.at_most) if aim.at_least is None else ("≥", aim.at_least)
    return " ".join([*aim.columns, sign, _number(value)])
