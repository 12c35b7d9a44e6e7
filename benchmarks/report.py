"""Prints sections: rich tables for people, Markdown to paste, JSON to keep."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.measures import Aim, Row, Section

_LIBRARIES: Final = ("aio-pika", "aiormq", "asyncpg", "uvloop")


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


def markdown(sections: Sequence[Section]) -> str:
    """Return all sections as Markdown tables, with a line on the machine."""
    facts = machine()
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


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{library: version(library) for library in _LIBRARIES},
    }


def _notes(section: Section) -> list[str]:
    """Return which columns stand behind the figures: none that is empty in all rows."""
    needed = {"unit": any(row.unit for row in section.rows), "aim": any(row.aims for row in section.rows)}
    return [name for name, is_needed in needed.items() if is_needed]


def _cells(section: Section, row: Row) -> list[str]:
    notes = {"unit": row.unit, "aim": _aims(row)}
    figures = [_number(row.cells.get(column)) for column in section.columns]
    return [row.name, *figures, *(notes[name] for name in _notes(section))]


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
