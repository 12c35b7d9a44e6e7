"""How commands show what they found: tables for people, JSON for scripts, progress on stderr.

Whatever comes from outside is shown as plain text: no markup, no control characters, nothing invisible, so
that parameters of a stranger cannot drive a terminal, or look like something else.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnstile.common.terminal_text import escaped, escaped_json

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_PIPED_WIDTH: Final = 10_000
"""A table in a pipe is never cut."""
_STYLES: Final = {
    "running": "cyan",
    "scheduled": "cyan",
    "completed": "green",
    "live": "green",
    "failed": "red",
    "timeout": "red",
    "abandoned": "red",
    "lost": "red",
    "overdue": "yellow",
    "expired": "yellow",
    "cancelled": "yellow",
}
"""Statuses of executions and workers; whatever is not here has no colour."""


def print_json(value: object, *, on_one_line: bool = False) -> None:
    """Print `value`; spread over lines only for people."""
    indent = 2 if sys.stdout.isatty() and not on_one_line else None
    # What stdout cannot show would get an escape that is none of JSON's.
    text = json.dumps(value, ensure_ascii=not _shows_all(), indent=indent)
    # Its own line breaks are those between values: in strings JSON escapes them.
    typer.echo(escaped_json(text))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or the sentence `empty`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # A line of the list is a line of the screen, whatever strangers put into their keys and errors.
        table.add_row(*(_cell(value, keep="") for value in row))
    _print(table if table.rows else Text(empty))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line; pairs without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value is not None and value != "":
            table.add_row(name, _cell(value))
    _print(table)


def print_line(text: str, *, style: str = "") -> None:
    """Print one line on stdout."""
    _print(Text(plain(text), style=style))


def print_text(text: str) -> None:
    """Print text as it stands, its own line breaks and no others."""
    typer.echo(plain(text), nl=False)


def warn(text: str) -> None:
    """Print one line on stderr."""
    typer.echo(plain(text), err=True)


def instant(text: str | None) -> str:
    """Return an instant of the API as people read it: UTC, to the second."""
    return "" if text is None else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%SZ")


def compact(value: object) -> str:
    """Return `value` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, on a terminal only; call what it yields for each step done."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def console_for_pipes() -> Console:
    """Return stdout as wide as a script needs it: by itself it takes 80 columns in a pipe, and folds."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _shows_all() -> bool:
    return (sys.stdout.encoding or "").lower().replace("_", "-") in ("utf-8", "utf8")


def _print(what: Table | Text) -> None:
    console_for_pipes().print(what, soft_wrap=isinstance(what, Text))


def _cell(value: object, *, keep: str = "\n\t") -> Text:
    text = "" if value is None else escaped(str(value), keep=keep)
    return Text(text, style=_STYLES.get(text, ""))


def plain(text: str) -> str:
    """Return `text` without what would drive a terminal."""
    return escaped(text, keep="\n\t")
