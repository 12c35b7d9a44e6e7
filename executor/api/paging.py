"""Pages of lists, and their cursors: opaque to clients, checked when they come back."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, Generic, TypeAlias, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.api.bodies import StrictModel

PAGE_MAX: Final = 1000
PAGE_DEFAULT: Final = 50
ID_MAX: Final = 2**63 - 1

Item = TypeVar("Item", bound=BaseModel)


class Page(BaseModel, Generic[Item]):
    """A page of a list; `next_cursor` leads to the next one and is null at the end."""

    items: list[Item]
    next_cursor: str | None


class Paging(StrictModel):
    """The parameters of a list."""

    limit: int = Field(default=PAGE_DEFAULT, ge=1, le=PAGE_MAX, description="Most items on the page.")
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of the previous page; absent: the first page."
    )


PageQuery: TypeAlias = Annotated[Paging, Query()]


async def page_before(
    kind: str, query: Paging, read: Callable[[int, int], Awaitable[tuple[Sequence[Item], int | None]]]
) -> Page[Item]:
    """Return a page from the newest to the oldest; `read` gets the id before which, and how many."""
    items, last = await read(cursor_id(kind, query.cursor, first=ID_MAX), query.limit)
    return Page(items=list(items), next_cursor=next_cursor(kind, last))


def cursor_of(kind: str, *parts: str | int) -> str:
    """Return a cursor that says where the next page of this kind of list starts."""
    return urlsafe_b64encode("\n".join([kind, *map(str, parts)]).encode()).decode().rstrip("=")


def cursor_parts(kind: str, cursor: str, *, count: int) -> list[str]:
    """Return what `cursor_of` was given; raises Refusal for anything that it did not return."""
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        raise invalid_cursor() from None
    found_kind, *parts = text.split("\n")
    if found_kind != kind or len(parts) != count or cursor_of(kind, *parts) != cursor or "\0" in text:
        raise invalid_cursor()
    return parts


def cursor_name(kind: str, cursor: str | None) -> str | None:
    """Return the name in a cursor, and None for the first page; raises Refusal."""
    return None if cursor is None else cursor_parts(kind, cursor, count=1)[0]


def cursor_id(kind: str, cursor: str | None, *, first: int) -> int:
    """Return the id in a cursor, and `first` for the first page; raises Refusal."""
    return first if cursor is None else cursor_ids(kind, cursor, count=1)[0]


def cursor_ids(kind: str, cursor: str, *, count: int) -> list[int]:
    """Return the ids in a cursor; raises Refusal."""
    parts = cursor_parts(kind, cursor, count=count)
    if not all(part.isascii() and part.isdigit() and int(part) <= ID_MAX for part in parts):
        raise invalid_cursor()
    return [int(part) for part in parts]


def next_cursor(kind: str, last: str | int | None) -> str | None:
    """Return the cursor behind the last item of a page; None: it was the last page."""
    return None if last is None else cursor_of(kind, last)


def next_offset(kind: str, offset: int, *, limit: int, total: int) -> str | None:
    """Return the cursor behind a page that is read by position."""
    end = offset + limit
    return next_cursor(kind, end if end < total else None)


def invalid_cursor() -> Refusal:
    """Refuse a cursor."""
    return Refusal(
        Code.INVALID_MESSAGE, "cursor: not from this list; send next_cursor unchanged, or no cursor"
    )
