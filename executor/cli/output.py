"""The output of commands: tables, lists by page, JSON for scripts, warnings and progress on stderr.

Values are printed as plain text: markup, control characters and invisible characters are escaped, so that the
parameters of an execution can neither control a terminal nor imitate other output.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnstile.common.cli import print_json as print_json  # noqa: PLC0414  (commands import it from here)
from turnstile.common.domain.durations import format_duration
from turnstile.common.exit_codes import ExitCode
from turnstile.common.redaction import escaped
from turnstile.executor.cli.arguments import option
from turnstile.executor.cli.client import Api, ApiRefused, Json
from turnstile.executor.cli.documents import ItemPage, Items

T = TypeVar("T")
Result = TypeVar("Result")
Columns: TypeAlias = Mapping[str, str | Callable[[Json], object]]
"""The columns of a table by heading: each a field of the item, or a function of it."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_ALL: Final = 1_000_000
CUT_PAGES_MAX: Final = 20
"""Pages that the API cut because each had read its maximum number of executions (50,000)."""
_PAGE_MAX: Final = 1000


def limit_of(noun: str, most: int) -> Any:
    """Return the option for how many items a list may have; each command has its own `most`."""
    return option("NUMBER", f"Maximum number of {noun}.", min=1, max=most)


QueueLimitOption = Annotated[int, limit_of("waiting executions", 1000)]
CursorOption = Annotated[str | None, option("CURSOR", "Start after the previous page: its `next_cursor`.")]
_DURATIONS: Final = (
    "timeout",
    "ttl",
    "keep_for",
    "retry.delay",
    "retry.max_delay",
    "rate.per",
    "every",
    "jitter",
)
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


def print_table(columns: Columns, items: Iterable[Json], *, empty: str, cut: str = "") -> None:
    """Print a row for each item, or the sentence `empty`; a terminal shows of column `cut` what fits."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=bool(cut))
    for heading in columns:
        if heading == cut:
            table.add_column(heading, overflow="ellipsis", no_wrap=True, ratio=1)
        else:
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


def shown(field: str, value: Any) -> str:
    """Return the value of a field of an action, resource or pool as it is written in a file."""
    if value is None:
        return "none"
    match field, value:
        case "rate", {"starts": starts, "per": per}:
            return f"{starts}/{format_duration(per)}"
        case "weights", {**weights}:
            return ", ".join(f"{ref} {weight}" for ref, weight in sorted(weights.items())) or "none"
        case "uses", [*uses]:
            return ", ".join(map(_use, uses)) or "none"
        case _ if field in _DURATIONS:
            return format_duration(value)
        case _:
            return value if isinstance(value, str) else compact(value)


def _use(use: Mapping[str, Any]) -> str:
    units = f" x{use['units']}" if use["units"] != 1 else ""
    weight = f" weight {use['weight']}" if use["weight"] != 1 else ""
    return f"{use['resource']}{units}{weight}"


def changed_fields(old: Json, new: Json) -> str:
    """Return what a change did, as old and new values."""
    return ", ".join(
        f"{field}: {_value(field, old)} -> {_value(field, new)}" for field in sorted(old.keys() | new.keys())
    )


def _value(field: str, values: Json) -> str:
    if field not in values:
        return "-"
    value = values[field]
    return compact(value) if isinstance(value, dict) and field != "weights" else shown(field, value)


def read_pages(
    api: Api, path: str, query: Mapping[str, Any], *, limit: int, cursor: str | None = None
) -> tuple[list[Json], str | None]:
    """Return at most `limit` items, and the cursor of the rest or None.

    A short page is not necessarily the last one. After `CUT_PAGES_MAX` pages that the API has cut, a warning
    says how far was searched.
    """
    items: list[Json] = []
    cut_pages = 0
    while True:
        page = api.get(path, {**query, "limit": min(limit - len(items), _PAGE_MAX), "cursor": cursor})
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None or len(items) >= limit:
            return items, cursor
        searched_until = page.get("searched_until")
        cut_pages += searched_until is not None
        if cut_pages >= CUT_PAGES_MAX:
            warn(f"the search was cut: what was created since {searched_until} was searched")
            return items, cursor


def read_all(api: Api, path: str) -> list[Json]:
    """Return all items of a list that is short enough not to be paginated for the user."""
    return read_pages(api, path, {}, limit=_ALL)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list of the API, and how it is printed."""

    path: str
    columns: Columns
    empty: str
    """What is printed where the list is empty."""
    cut: str = ""
    """The column of which a terminal shows what fits."""
    has_cursor: bool = True
    """Whether the command has the option `--cursor`."""

    def print_all(self, api: Api, *, as_json: bool) -> None:
        """Print all items of a list that is short enough."""
        items = read_all(api, self.path)
        if as_json:
            print_json(Items(items=items))
        else:
            print_table(self.columns, items, empty=self.empty)

    def print_page(
        self,
        api: Api,
        query: Mapping[str, Any] | None = None,
        *,
        limit: int,
        cursor: str | None = None,
        as_json: bool,
    ) -> None:
        """Print at most `limit` items; a warning says how to see the rest."""
        items, next_cursor = read_pages(api, self.path, query or {}, limit=limit, cursor=cursor)
        if as_json:
            print_json(ItemPage(items=items, next_cursor=next_cursor))
            return
        print_table(self.columns, items, empty=self.empty, cut=self.cut)
        if next_cursor is not None:
            ways = [f"--limit {limit * 2}"] if len(items) >= limit or not self.has_cursor else []
            ways += [f"--cursor {next_cursor}"] if self.has_cursor else []
            warn(f"more available: {', or '.join(ways)}")


def print_queue(
    found: Json, holders: Columns, waiting: Columns, *, no_holders: str, nothing_waits: str
) -> None:
    """Print holders and waiting executions of a page of a queue."""
    print_table(holders, found["holders"], empty=no_holders)
    print_line("")
    print_table(waiting, found["items"], empty=nothing_waits)
    if found["next_cursor"] is not None:
        warn(f"more available: --cursor {found['next_cursor']}")


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
    console = console_for_pipes()
    if console.is_terminal or isinstance(what, Text):
        console.print(what, soft_wrap=isinstance(what, Text))
        return
    # In a pipe no cell is padded up to the widest value of the last column.
    with console.capture() as capture:
        console.print(what)
    print_text("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _cell(value: object, *, keep: str = "\n\t") -> Text:
    text = "" if value is None else escaped(str(value), keep=keep)
    return Text(text, style=_STYLES.get(text, ""))


def plain(text: str) -> str:
    """Return `text` with escapes in place of control characters."""
    return escaped(text, keep="\n\t")
