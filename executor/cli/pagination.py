"""Lists: read page by page, printed as a table or as JSON with the cursor of the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from turnstile.executor.cli.arguments import option
from turnstile.executor.cli.client import Api, Json
from turnstile.executor.cli.documents import ItemPage, Items
from turnstile.executor.cli.output import Columns, print_json, print_line, print_table, warn

_ALL: Final = 1_000_000
CUT_PAGES_MAX: Final = 20
"""Pages that the API cut because each had read its maximum number of executions (50,000)."""
_PAGE_MAX: Final = 1000


def limit_of(noun: str, most: int) -> Any:
    """Return the option for how many items a list may have; each command has its own `most`."""
    return option("NUMBER", f"Maximum number of {noun}.", min=1, max=most)


QueueLimitOption = Annotated[int, limit_of("waiting executions", 1000)]
CursorOption = Annotated[str | None, option("CURSOR", "Start after the previous page: its `next_cursor`.")]


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
        print_table(self.columns, items, empty=self.empty)
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
