"""The route of logs: what the attempts of an execution have written, also while they run."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.api.paging import cursor_of, foreign_cursor, places_of
from turnstile.executor.api.problems import documented
from turnstile.executor.api.submissions import ExecutionPath
from turnstile.executor.reading.logs import PIECES_MAX, LogPlace, LogReader, LogShape

_CURSOR: Final = "logs"
_EXAMPLE: Final[JsonDict] = {
    "items": [
        {
            "attempt": 1,
            "at": "2026-11-21T07:30:01.250Z",
            "text": "2026-11-21T07:30:00.312Z INFO page 1 of 40\n",
        }
    ],
    "next_cursor": "bG9ncwoxCjQz",
    "ended": False,
}


class LogListing(BaseModel):
    """Which part of the logs to show. No other parameters are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Only this attempt.")
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of what was read before; absent: from the beginning."
    )
    after: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="An older name of `cursor`.", json_schema_extra={"deprecated": True}
    )
    limit: int = Field(default=200, ge=1, le=PIECES_MAX, description="Most pieces in the answer.")


class Logs(BaseModel):
    """Pieces of logs in order: attempt by attempt, as they were written."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    items: list[LogShape]
    next_cursor: str | None = Field(
        description="Send it as `cursor` for what follows, at once or a second later; null once `ended`."
    )
    ended: bool = Field(description="Nothing follows: the execution, or the attempt asked for, is over.")


def log_routes(reader: LogReader) -> APIRouter:
    """Return the route of logs."""
    routes = APIRouter(prefix="/executions", tags=["executions"])

    @routes.get(
        "/{execution_id}/logs",
        summary="Read what its attempts have logged, also while they run",
        description="Of each attempt about the last 64 KiB are kept.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_logs(execution_id: ExecutionPath, asked: Annotated[LogListing, Query()]) -> Logs:
        page = await reader.logs(
            ExecutionId(execution_id),
            attempt=asked.attempt,
            after=_place(asked.cursor or asked.after),
            limit=asked.limit,
        )
        if page is None:
            raise Refusal(Code.NOT_FOUND, f"execution_id: there is no execution {execution_id}")
        cursor = None if page.is_ended else cursor_of(_CURSOR, page.place.attempt, page.place.chars)
        return Logs(items=page.items, next_cursor=cursor, ended=page.is_ended)

    return routes


def _place(cursor: str | None) -> LogPlace:
    if cursor is None:
        return LogPlace()
    attempt, chars = places_of(_CURSOR, cursor, count=2)
    if not all(place.isascii() and place.isdigit() for place in (attempt, chars)):
        raise foreign_cursor()
    place = LogPlace(attempt=int(attempt), chars=int(chars))
    if not (place.attempt < 2**31 and place.chars < 2**62):
        raise foreign_cursor()
    return place
