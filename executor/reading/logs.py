"""Reads what attempts have logged: of one that runs still, what its worker has flushed so far.

In: an execution, and how far it was read before. Out: pieces in order, and whether more may come.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg
from pydantic import AwareDatetime, Field

from turnstile.common.database import Database
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.reading.execution_shapes import Shape
from turnstile.executor.reading.turns import ReadingTurns
from turnstile.executor.sql import query

PIECES_MAX: Final = 1000
_CHARS_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """How far the logs of an execution were read."""

    attempt: int = 0
    chars: int = 0


class LogShape(Shape):
    """Some of what an attempt has logged and printed."""

    attempt: int = Field(description="Number of the attempt, from 1.")
    at: AwareDatetime = Field(description="When it came to the record: about a second after it was written.")
    text: str = Field(description="As it was written: pieces laid side by side are the log.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """What was read; `is_ended`: nothing can follow."""

    items: list[LogShape]
    place: LogPlace
    is_ended: bool


class LogReader:
    """Asks for logs, a few at a time: they are the widest thing in the record."""

    def __init__(self, database: Database, turns: ReadingTurns) -> None:
        self._database = database
        self._turns = turns

    async def logs(
        self, execution_id: ExecutionId, *, attempt: int | None, after: LogPlace, limit: int
    ) -> LogPage | None:
        """Return what follows `after`, of one attempt or of all; None: there is no such execution."""
        async with self._turns.one():
            rows = await self._database.fetch(
                query("logs"), execution_id, attempt, after.attempt, after.chars, limit, _CHARS_MAX
            )
        if not rows:
            return None
        last = rows[-1]
        is_ended = last["is_last"] and last["is_over"]
        if last["attempt"] is None:
            return LogPage(items=[], place=after, is_ended=is_ended)
        items = [LogShape(attempt=row["attempt"], at=row["at"], text=_text(row)) for row in rows]
        place = LogPlace(attempt=last["attempt"], chars=last["start"] + len(last["text"]))
        return LogPage(items=items, place=place, is_ended=is_ended)


def _text(row: asyncpg.Record) -> str:
    """Return a piece, behind a line that says what is not there any more of the log before it."""
    missing, text = row["missing"], str(row["text"])
    return f"[{missing} characters before this were cut]\n{text}" if missing else text
