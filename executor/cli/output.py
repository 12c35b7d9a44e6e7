"""The output of commands: tables, JSON for scripts, warnings and progress on stderr.

Values are printed as plain text: markup, control characters and invisible characters are escaped, so that the
parameters of an execution can neither control a terminal nor imitate other output.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnstile.common.cli import print_json as print_json  # noqa: PLC0414  (commands import it from here)
from turnstile.common.exit_codes import ExitCode
from turnstile.common.redaction import escaped
from turnstile.executor.cli.client import ApiRefused, Json

T = TypeVar("T")
Result = TypeVar("Result")
Columns: TypeAlias = Mapping[str, str | Callable[[Json], object]]
"""The columns of a table by heading: each a field of the item, or a function of it."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_PIPED_WIDTH: Final = 10_000
"""Tables are not truncated when stdout is a pipe."""
_STYLES: Final = {
    "running": "cyan",
    "scheduled": "cyan",
    "completed": "green",
    "live": "green",
    "ok": "green",
    "warning": "yellow",
    "failed": "red",
    "timeout": "red",
    "abandoned": "red",
    "lost": "red",
    "running, stopping": "yellow",
    "overdue": "yellow",
    "expired": "yellow",
    "cancelled": "yellow",
}
"""Colours of the statuses of executions, workers and checks; all others have none."""


def show(value: Json, printer: Callable[[Json], None], *, as_json: bool) -> None:
    """Print `value` as JSON, or as text by `printer`."""
    if as_json:
        print_json(value)
    else:
        printer(value)


def print_table(columns: Columns, items: Iterable[Json], *, empty: str) -> None:
    """Print a row for each item, or the sentence `empty`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for item in items:
        values = (item[value] if isinstance(value, str) else value(item) for value in columns.values())
        # A row stays one line, also if its values contain line breaks.
        table.add_row(*(_cell(value, keep="") for value in values))
    _print(table if table.rows else Text(empty))


def print_more(columns: Columns, items: Iterable[Json]) -> None:
    """Print a table after an empty line, if it has rows."""
    if rows := [*items]:
        print_line("")
        print_table(columns, rows, empty="")


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line, without the pairs whose value is empty."""
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
    """Print text without a final line break."""
    typer.echo(plain(text), nl=False)


def warn(text: str) -> None:
    """Print one line on stderr."""
    typer.echo(plain(text), err=True)


def instant(text: str | None) -> str:
    """Return an instant of the API in UTC, to the second."""
    return "" if text is None else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%SZ")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 slot, 2 slots."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def compact(value: object) -> str:
    """Return `value` as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; the yielded function advances it."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def for_each(
    subjects: Iterable[T],
    request: Callable[[T], Result],
    sentence: Callable[[T, Result], str],
    *,
    as_json: bool,
) -> None:
    """Print the response of one request per subject; a rejection is a warning, and exit code 1 at the end."""
    refused = 0
    for subject in subjects:
        try:
            response = request(subject)
        except ApiRefused as refusal:
            refused += 1
            warn(f"{subject}: {refusal.message}")
            continue
        if as_json:
            print_json(response, on_one_line=True)
        else:
            print_line(sentence(subject, response))
    if refused:
        raise typer.Exit(ExitCode.FAILED)


def console_for_pipes() -> Console:
    """Return a console on stdout that does not fold lines in a pipe (rich assumes 80 columns there)."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _print(what: Table | Text) -> None:
    console_for_pipes().print(what, soft_wrap=isinstance(what, Text))


def _cell(value: object, *, keep: str = "\n\t") -> Text:
    text = "" if value is None else escaped(str(value), keep=keep)
    return Text(text, style=_STYLES.get(text, ""))


def plain(text: str) -> str:
    """Return `text` with escapes in place of control characters."""
    return escaped(text, keep="\n\t")
