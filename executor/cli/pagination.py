"""Requests that need several calls: lists by page, bulk operations by batch.

Each call is bounded by the API; a bulk operation covers what exists when it starts.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.client import Api, ApiUnreachable, Json
from turnstile.executor.cli.documents import Handled, ItemPage, Items, Planned
from turnstile.executor.cli.output import Columns, print_json, print_line, print_table, warn

_ALL: Final = 1_000_000
CUT_PAGES_MAX: Final = 20
"""Pages that the API cut because each had read its maximum number of executions (50,000)."""
_PAGE_MAX: Final = 1000


def limit_of(noun: str, most: int) -> Any:
    """Return the option for how many items a list may have; each command has its own `most`."""
    return typer.Option(min=1, max=most, metavar="NUMBER", help=f"Maximum number of {noun}.")


QueueLimitOption = Annotated[int, limit_of("waiting executions", 1000)]
CursorOption = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Start after the previous page: its `next_cursor`.")
]


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


def print_all(api: Api, path: str, columns: Columns, *, empty: str, as_json: bool) -> None:
    """Print all items of such a list."""
    items = read_all(api, path)
    if as_json:
        print_json(Items(items=items))
    else:
        print_table(columns, items, empty=empty)


def print_page(
    found: tuple[list[Json], str | None],
    columns: Columns,
    *,
    empty: str,
    limit: int,
    as_json: bool,
    shows_cursor: bool = True,
) -> None:
    """Print what `read_pages` returned; a warning says how to see the rest."""
    items, next_cursor = found
    if as_json:
        print_json(ItemPage(items=items, next_cursor=next_cursor))
        return
    print_table(columns, items, empty=empty)
    if next_cursor is not None:
        ways = [f"--limit {limit * 2}"] if len(items) >= limit or not shows_cursor else []
        ways += [f"--cursor {next_cursor}"] if shows_cursor else []
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


def change_matching(
    api: Api,
    verb: str,
    body: dict[str, Any],
    *,
    key: str | None,
    limit: int | None,
    on_matched: Callable[[int], None],
) -> Iterator[Json]:
    """POST `body` to `/executions/{verb}` until its filter matches nothing more, or `limit` is reached.

    Raises ApiUnreachable with how many were changed before, and how to repeat the command safely.
    """
    cursor, matched, changed = None, 0, 0
    while limit is None or matched < limit:
        batch_max = _PAGE_MAX if limit is None else min(_PAGE_MAX, limit - matched)
        try:
            page = api.post(
                f"/executions/{verb}", encode({**body, "limit": batch_max, "cursor": cursor}), key=key
            )
        except ApiUnreachable as error:
            same_key = "" if key is None else f" with --idempotency-key {key}, so that nothing is repeated"
            raise ApiUnreachable(
                f"{error.message}\n{changed} executions were changed before; run the command again{same_key}"
            ) from None
        yield page
        matched, changed = matched + page["matched"], changed + page["changed"]
        on_matched(page["matched"])
        cursor = page["next_cursor"]
        if cursor is None:
            return


def repeat_until_done(
    api: Api, path: str, selection: Mapping[str, Any], *, batch_max: int, confirmed: int | None = None
) -> dict[str, Any]:
    """POST `selection` until everything that it matched at first is handled; later matches are left alone.

    At most `confirmed`, the oldest first; None: as many as the first call matches. What is refused stays at
    the head of the list, so each call selects it again.
    """
    if confirmed == 0:
        return {"done": 0, "refused": [], "missing": [], "left": 0}
    bound = {} if confirmed is None else {"limit": min(confirmed, batch_max)}
    page = api.post(path, encode({**selection, **bound}))
    done, refused = page["done"], {each["id"]: each for each in page["refused"]}
    at_first = done + len(refused) + page["left"]
    if confirmed is not None:
        at_first = min(at_first, confirmed)
    while page["left"] and page["done"] and done + len(refused) < at_first:
        page = api.post(path, encode({**selection, "limit": min(at_first - done, batch_max)}))
        done += page["done"]
        refused |= {each["id"]: each for each in page["refused"]}
    return {
        "done": done,
        "refused": list(refused.values()),
        "missing": page["missing"],
        "left": max(at_first - done - len(refused), 0),
    }


def print_planned(planned: Mapping[str, Any], summary: str, *, missing: str, as_json: bool) -> None:
    """Print the result of a dry run; exit code 1 if anything that was named would remain."""
    refused_items = planned.get("refused", ())
    if as_json:
        print_json(Planned(matched=planned["left"], refused=refused_items, missing=planned["missing"]))
    else:
        print_line(summary)
        for refused in refused_items:
            warn(f"{refused['id']}: would not be replayed: {refused['reason']}")
        for name in planned["missing"]:
            warn(f"{name}: not_found: {missing}")
    if refused_items or planned["missing"]:
        raise typer.Exit(ExitCode.FAILED)


def print_handled(total: Mapping[str, Any], summary: str, *, missing: str, as_json: bool) -> None:
    """Print the result of a replay or a purge; exit code 1 if anything that was named remains."""
    left = total.get("left", 0)
    if as_json:
        print_json(Handled(done=total["done"], refused=total["refused"], missing=total["missing"], left=left))
    else:
        print_line(summary)
        for refused in total["refused"]:
            warn(f"{refused['id']}: not replayed: {refused['reason']}")
        for name in total["missing"]:
            warn(f"{name}: not_found: {missing}")
        if left:
            warn(f"{left} left; repeat the command")
    if total["refused"] or total["missing"] or left:
        raise typer.Exit(ExitCode.FAILED)
