"""What rows of several kinds share when they become schemas of the HTTP API.

A JSON value that cannot be read is left out rather than failing its page.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg
from pydantic import BaseModel

from turnstile.common.json_limits import readable
from turnstile.executor.queries.schemas import ErrorDetail

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_Model = TypeVar("_Model", bound=BaseModel)
_Start = TypeVar("_Start")


def error_of(row: "Row") -> ErrorDetail | None:
    """Return the error of an execution or attempt."""
    if row["error_type"] is None:
        return None
    return ErrorDetail(type=row["error_type"], message=row["error_message"] or "")


def page_of(
    rows: "Sequence[Row]", limit: int, read: "Callable[[Row], _Model]", start: Callable[[_Model], _Start]
) -> tuple[list[_Model], _Start | None]:
    """Return a page of at most `limit` items, and where the next one starts; None: nothing follows.

    `rows` may have one more than the page; `start` returns where a page behind an item starts.
    """
    shown = [read(row) for row in rows[:limit]]
    return shown, start(shown[-1]) if len(rows) > limit else None


def row_fields(model: type[BaseModel], row: "Row", *, but: set[str]) -> dict[str, Any]:
    """Return the columns of a row that are fields of a model."""
    return {name: row[name] for name in model.model_fields if name not in but}


def parsed(model: type[_Model], text: str | None) -> list[_Model]:
    """Return the models in a JSON array."""
    return [model.model_validate(item) for item in readable(text) or ()]
