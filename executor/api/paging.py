"""Cursors: opaque to clients, checked when they come back."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from turnstile.common.domain.errors import Code, Refusal

PAGE_MAX: Final = 1000
PAGE_DEFAULT: Final = 50

Item = TypeVar("Item", bound=BaseModel)


class Page(BaseModel, Generic[Item]):
    """Some of a list; `next_cursor` leads to the rest and is null at the end."""

    items: list[Item]
    next_cursor: str | None


class Paging(BaseModel):
    """Which page of a list. No other parameters are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(default=PAGE_DEFAULT, ge=1, le=PAGE_MAX, description="Most items on the page.")
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of the page before; absent: the first page."
    )


def cursor_of(kind: str, *places: str | int) -> str:
    """Return a cursor that says where the next page of this kind of list starts."""
    return urlsafe_b64encode("\n".join([kind, *map(str, places)]).encode()).decode().rstrip("=")


def places_of(kind: str, cursor: str, *, count: int) -> list[str]:
    """Return what `cursor_of` was given; raises Refusal for anything that it did not return."""
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        raise foreign_cursor() from None
    found_kind, *places = text.split("\n")
    if found_kind != kind or len(places) != count or cursor_of(kind, *places) != cursor or "\0" in text:
        raise foreign_cursor()
    return places


def ticket_of(kind: str, cursor: str | None) -> int | None:
    """Return the execution id in a cursor; raises Refusal."""
    if cursor is None:
        return None
    return tickets_of(kind, cursor, count=1)[0]


def tickets_of(kind: str, cursor: str, *, count: int) -> list[int]:
    """Return the execution ids in a cursor; raises Refusal."""
    places = places_of(kind, cursor, count=count)
    if not all(place.isascii() and place.isdigit() and int(place) < 2**63 for place in places):
        raise foreign_cursor()
    return [int(place) for place in places]


def foreign_cursor() -> Refusal:
    """Refuse a cursor."""
    return Refusal(
        Code.INVALID_MESSAGE, "cursor: not one of this list; send next_cursor as it came, or no cursor"
    )
