"""Reads a list of the API page by page, up to a number of items."""

from collections.abc import Mapping
from typing import Any, Final

from turnstile.executor.cli.connection import Api, Json

_PAGE_MAX: Final = 1000


def read_pages(
    api: Api, path: str, query: Mapping[str, Any], *, limit: int, cursor: str | None = None
) -> tuple[list[Json], str | None]:
    """Return at most `limit` items and the cursor of the rest; None: there is no rest.

    A page may be short and still not be the last one.
    """
    items: list[Json] = []
    while True:
        page = api.get(path, {**query, "limit": min(limit - len(items), _PAGE_MAX), "cursor": cursor})
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None or len(items) >= limit:
            return items, cursor
