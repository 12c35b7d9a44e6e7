"""Decodes rows of actions and queues into the schemas of the HTTP API, and what rows of several kinds share.

A JSON value that cannot be read is left out rather than failing its page.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import asyncpg
from pydantic import BaseModel

from turnstile.common.action_definition import RateDefinition, RetryDefinition
from turnstile.common.json_limits import readable
from turnstile.common.schemas import KeyStats, QueueStats, WaitingCounts
from turnstile.executor.queries.schemas import ActionDetail, CodeSchemas, ErrorDetail, StoredAction

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_Model = TypeVar("_Model", bound=BaseModel)
_Start = TypeVar("_Start")


def read_queue_stats(row: "Row") -> QueueStats:
    """Return the row of the statement `queue_stats`."""
    waiting = WaitingCounts(
        limit=row["on_limit"],
        total=row["on_total"],
        resource=row["on_resource"],
        rate=row["on_rate"],
        pool=row["on_pool"],
        paused=row["on_pause"],
        no_worker=row["on_worker"],
    )
    by_key = tuple(parsed(KeyStats, row["by_key"]))
    return QueueStats(
        **row_fields(QueueStats, row, but={"waiting", "by_key"}), waiting=waiting, by_key=by_key
    )


def read_action(row: "Row") -> StoredAction:
    """Return the row of the statement `action`."""
    retry = RetryDefinition(
        max_attempts=row["retry_max_attempts"],
        delay=row["retry_delay_seconds"],
        factor=row["retry_factor"],
        max_delay=row["retry_max_delay_seconds"],
        jitter=row["retry_jitter"],
    )
    return StoredAction(
        **row_fields(
            StoredAction,
            row,
            but={
                "entrypoint",
                "retry",
                "timeout",
                "ttl",
                "keep_for",
                "order",
                "rate",
                "uses",
                "parameters_schema",
                "result_schema",
            },
        ),
        order=order_of(row),
        rate=rate_of(row),
        uses=readable(row["uses"]),
        parameters_schema=readable(row["parameters_schema"]),
        result_schema=readable(row["result_schema"]),
        entrypoint=readable(row["entrypoint"]),
        retry=retry,
        timeout=row["timeout_seconds"],
        ttl=row["ttl_seconds"],
        keep_for=row["keep_for_seconds"],
    )


def read_action_detail(action: StoredAction, derived: "Sequence[Row]") -> ActionDetail:
    """Return an action with the schemas of its code, rows of the statement `code_schemas`."""
    code_schemas = [
        CodeSchemas(
            parameters_schema=readable(row["parameters_schema"]),
            result_schema=readable(row["result_schema"]),
            registered_at=row["registered_at"],
        )
        for row in derived
    ]
    takes_all = any(row["takes_all"] or row["parameters_schema"] is None for row in derived)
    checked_by: Literal["definition", "code", "worker"] = "code" if derived and not takes_all else "worker"
    return ActionDetail(
        **dict(action),
        code_schemas=code_schemas,
        parameters_checked_by="definition" if action.parameters_schema is not None else checked_by,
    )


def order_of(row: "Row") -> Literal["arrival", "fair"]:
    """Return the order of an action or resource."""
    return "fair" if row["fair"] else "arrival"


def rate_of(row: "Row") -> RateDefinition | None:
    """Return the rate of an action or resource."""
    if row["rate_starts"] is None:
        return None
    return RateDefinition(starts=row["rate_starts"], per=row["rate_per_seconds"])


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
