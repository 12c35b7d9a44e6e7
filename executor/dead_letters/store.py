"""Lists, shows, replays and purges dead letters.

In: names of dead letters, a code, or all of them. Out: the result, with the reason for each that remains. A
row is deleted only after the broker confirmed its message (P5). A crash between the two leaves one more copy
of the message, which its message id identifies.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.callers import Caller
from turnstile.executor.dead_letters.message import StoredDeadLetter, replayed
from turnstile.executor.sql import statements

logger = logging.getLogger(__name__)

_STATEMENTS: Final = statements("dead_letters/dead_letters.sql")
LISTED_BODY_BYTES_MAX: Final = 1024
"""Bytes of each body in a list."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the body of a single dead letter."""
_WHOLE: Final = 2**31 - 1
_CHUNK_ROWS_MAX: Final = 500
_CHUNK_BYTES_MAX: Final = 8 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 25.0
"""For a whole operation: HTTP answers within 30 s."""
_BEGIN_SECONDS: Final = 10.0
"""No chunk begins later; the caller requests the rest again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a dead letter in the list, which is ordered by time."""

    died_at: datetime
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects dead letters, by exactly one of these."""

    names: tuple[str, ...] = ()
    """Ids, fingerprints or message ids. Digits alone are an id; a message id selects the oldest with it."""
    code: str | None = None
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of dead letters, in the order that was requested."""

    letters: list[StoredDeadLetter]
    rest: bool
    """Whether there are more."""
    total: int
    """Dead letters of any code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterResult:
    """Result of a replay or a purge."""

    done: int
    """Dead letters that were deleted."""
    refused: list[tuple[StoredDeadLetter, str]] = field(default_factory=list)
    """Dead letters that remain, and why."""
    missing: list[str] = field(default_factory=list)
    """Names that match no dead letter."""
    left: int = 0
    """Selected dead letters that were not handled; request them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The selected dead letters, in order, as ids and stored sizes."""

    sizes: list[tuple[int, int]]
    missing: list[str]
    beyond: int
    """How many exceed the limit."""

    def chunks(self) -> Iterator[list[int]]:
        """Yield ids in chunks of bounded count and size."""
        chunk: list[int] = []
        chunk_bytes = 0
        for letter_id, size_bytes in self.sizes:
            if chunk and (len(chunk) == _CHUNK_ROWS_MAX or chunk_bytes + size_bytes > _CHUNK_BYTES_MAX):
                yield chunk
                chunk, chunk_bytes = [], 0
            chunk.append(letter_id)
            chunk_bytes += size_bytes
        if chunk:
            yield chunk


class DeadLetters:
    """The rows of `ledger.dead_letter`. Safe to share between tasks and processes."""

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database = database
        self._publisher = publisher

    async def page(
        self, *, code: str | None, after: Position | None, limit: int, newest_first: bool = False
    ) -> Page:
        """Return the dead letters behind a position. Raises Unavailable, like the other methods."""
        rows = await self._database.fetch(
            _STATEMENTS["newest" if newest_first else "oldest"],
            code,
            None if after is None else after.died_at,
            None if after is None else after.id,
            limit + 1,
            LISTED_BODY_BYTES_MAX,
        )
        total = await self._database.fetchval(_STATEMENTS["total"])
        return Page(letters=[_letter(row) for row in rows[:limit]], rest=len(rows) > limit, total=total)

    async def read(self, name: str) -> StoredDeadLetter | None:
        """Return one dead letter with its body; None where there is none of that name."""
        chosen = await self._choose(Selection(names=(name,)), limit=1)
        found = await self._read([each for each, _ in chosen.sizes], body_bytes_max=BODY_BYTES_MAX)
        return found[0] if found else None

    async def replay(
        self, selection: Selection, *, limit: int, changed_by: Caller, body: bytes | None = None
    ) -> DeadLetterResult:
        """Publish dead letters with their original routing keys, the oldest first; delete the confirmed ones.

        At most `limit`; with `body` instead of their own. If the broker connection is lost meanwhile, some
        may have been published and still be stored.
        """
        done, refused, handled = 0, list[tuple[StoredDeadLetter, str]](), 0
        async with _bounded() as deadline:
            chosen = await self._choose(selection, limit=limit)
            for ids in chosen.chunks():
                if time.monotonic() > deadline:
                    break
                letters = await self._read(ids, body_bytes_max=_WHOLE)
                cut = [each for each in letters if each.body_truncated and body is None]
                whole = [each for each in letters if each not in cut]
                refused += [(each, _cut(each)) for each in cut]
                confirmed, not_confirmed = await self._publish(whole, body)
                reached(CrashPoint.DEAD_LETTERS_PUBLISHED)
                await self._delete(confirmed, "replayed", changed_by, edited=body is not None)
                refused += not_confirmed
                done += len(confirmed)
                handled += len(ids)
        logger.info(
            "dead_letters_replayed",
            extra={"letters": done, "refused": len(refused), "edited": body is not None},
        )
        left = chosen.beyond + len(chosen.sizes) - handled
        return DeadLetterResult(done=done, refused=refused, missing=chosen.missing, left=left)

    async def purge(self, selection: Selection, *, limit: int, changed_by: Caller) -> DeadLetterResult:
        """Delete dead letters, the oldest first, at most `limit`."""
        done = handled = 0
        async with _bounded() as deadline:
            chosen = await self._choose(selection, limit=limit)
            for ids in chosen.chunks():
                if time.monotonic() > deadline:
                    break
                done += await self._delete(ids, "purged", changed_by)
                handled += len(ids)
        logger.warning("dead_letters_purged", extra={"letters": done})
        left = chosen.beyond + len(chosen.sizes) - handled
        return DeadLetterResult(done=done, missing=chosen.missing, left=left)

    async def planned(self, selection: Selection, *, limit: int) -> DeadLetterResult:
        """Return what a replay or a purge would leave that handled nothing: all that is selected."""
        chosen = await self._choose(selection, limit=limit)
        return DeadLetterResult(done=0, missing=chosen.missing, left=chosen.beyond + len(chosen.sizes))

    async def _choose(self, selection: Selection, *, limit: int) -> _Chosen:
        if not selection.names:
            rows = await self._database.fetch(_STATEMENTS["sizes"], selection.code, limit)
            total = rows[0]["total"] if rows else 0
            sizes = [(row["id"], row["stored_bytes"]) for row in rows]
            return _Chosen(sizes=sizes, missing=[], beyond=total - len(sizes))
        names = [name for name in dict.fromkeys(selection.names) if "\0" not in name]
        rows = await self._database.fetch(_STATEMENTS["named"], names, [_as_id(name) for name in names])
        found = {row["name"] for row in rows}
        sizes = list({row["id"]: row["stored_bytes"] for row in rows}.items())
        missing = [name for name in selection.names if name not in found]
        return _Chosen(sizes=sizes[:limit], missing=missing, beyond=len(sizes[limit:]))

    async def _read(self, ids: Sequence[int], *, body_bytes_max: int) -> list[StoredDeadLetter]:
        rows = await self._database.fetch(_STATEMENTS["some"], ids, body_bytes_max)
        return [_letter(row) for row in rows]

    async def _delete(
        self, ids: Sequence[int], verb: str, changed_by: Caller, *, edited: bool = False
    ) -> int:
        return int(await self._database.fetchval(_STATEMENTS["delete"], *changed_by, ids, verb, edited))

    async def _publish(
        self, letters: Sequence[StoredDeadLetter], body: bytes | None
    ) -> tuple[list[int], list[tuple[StoredDeadLetter, str]]]:
        """Return the ids of the confirmed ones, and the others with the reason."""
        try:
            outcomes = await self._publisher.publish([replayed(letter, body=body) for letter in letters])
        except BrokerUnavailable as error:
            raise Unavailable(
                f"broker: {error}; list the dead letters before you repeat the replay"
            ) from error
        pairs = list(zip(letters, outcomes, strict=True))
        return (
            [letter.id for letter, outcome in pairs if outcome is Publication.CONFIRMED],
            [(letter, _why(letter, o)) for letter, o in pairs if o is not Publication.CONFIRMED],
        )


@asynccontextmanager
async def _bounded() -> AsyncIterator[float]:
    """Bound a change, and yield until when its next chunk may begin; raises Unavailable."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            yield time.monotonic() + _BEGIN_SECONDS
    except TimeoutError:
        raise Unavailable(
            f"broker or database: no answer within {_TIMEOUT_SECONDS:g} s; list the dead letters before you "
            "repeat it"
        ) from None


def _as_id(name: str) -> int | None:
    """Return a name of digits as an id; 0, which no row has, where it is too large."""
    if not (name.isascii() and name.isdigit()):
        return None
    return int(name) if len(name) <= 18 else 0


def _letter(row: "asyncpg.Record") -> StoredDeadLetter:
    fields: Mapping[str, Any] = dict(row.items())
    return StoredDeadLetter(**{**fields, "headers": from_json(fields["headers"])})


def _cut(letter: StoredDeadLetter) -> str:
    return (
        f"only the beginning of its body of {letter.body_bytes} bytes is stored; replay it with another body"
    )


def _why(letter: StoredDeadLetter, outcome: Publication) -> str:
    if outcome is Publication.RETURNED:
        return f"no queue takes {letter.original_routing_key!r}"
    return f"the queue that takes {letter.original_routing_key!r} is full or broken"
