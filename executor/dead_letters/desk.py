"""List, show, replay, purge: what an operator does with dead letters.

In: names of letters, a code, or all of them. Out: what was done, and why not for each that stays. A row is
deleted only after the broker confirmed the message that it became (P5): whatever goes wrong between the two,
there is one more copy of a message, and a copy is recognised by its message id.
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

from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.dead_letters.letter import StoredLetter, replayed
from turnstile.executor.sql import query

logger = logging.getLogger(__name__)

LISTED_BODY_BYTES_MAX: Final = 1024
"""How much of its body a letter shows in a list."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""How much it shows alone."""
_WHOLE: Final = 2**31 - 1
_CHUNK_LETTERS_MAX: Final = 500
_CHUNK_BYTES_MAX: Final = 8 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 25.0
"""For all of it: HTTP answers within 30 s."""
_BEGIN_SECONDS: Final = 10.0
"""No chunk begins later; what is left is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the list a letter stands: the oldest deaths come first."""

    died_at: datetime
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant; exactly one of these."""

    names: tuple[str, ...] = ()
    """Ids, fingerprints or message ids. Digits alone are an id; a message id means the oldest that has it."""
    code: str | None = None
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the letters, the oldest first."""

    letters: list[StoredLetter]
    rest: bool
    """There are more behind these."""
    total: int
    """Letters of whatever code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What became of a selection."""

    done: int
    """Letters that are gone."""
    refused: list[tuple[StoredLetter, str]] = field(default_factory=list)
    """Letters that stay, and why."""
    missing: list[str] = field(default_factory=list)
    """Names that mean no letter."""
    left: int = 0
    """Letters that are meant too and have to be asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The letters of a selection, in order, as ids and stored sizes."""

    sizes: list[tuple[int, int]]
    missing: list[str]
    beyond: int
    """Those above the limit."""

    def chunks(self) -> Iterator[list[int]]:
        """Yield ids, as many at once as fit into memory."""
        chunk: list[int] = []
        chunk_bytes = 0
        for letter_id, size_bytes in self.sizes:
            if chunk and (len(chunk) == _CHUNK_LETTERS_MAX or chunk_bytes + size_bytes > _CHUNK_BYTES_MAX):
                yield chunk
                chunk, chunk_bytes = [], 0
            chunk.append(letter_id)
            chunk_bytes += size_bytes
        if chunk:
            yield chunk


class DeadLetters:
    """The rows of `dead_letter`. Safe to share between tasks and processes."""

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database = database
        self._publisher = publisher

    async def page(self, *, code: str | None, after: Place | None, limit: int) -> Page:
        """Return the letters behind a place in the list. Raises Unavailable, like all that follow."""
        rows = await self._database.fetch(
            query("dead_letters"),
            code,
            None if after is None else after.died_at,
            None if after is None else after.id,
            limit + 1,
            LISTED_BODY_BYTES_MAX,
        )
        total = await self._database.fetchval("SELECT count(*) FROM dead_letter")
        return Page(letters=[_letter(row) for row in rows[:limit]], rest=len(rows) > limit, total=total)

    async def read(self, name: str) -> StoredLetter | None:
        """Return one letter with its body; None where there is none of that name."""
        chosen = await self._choose(Selection(names=(name,)), limit=1)
        found = await self._read([each for each, _ in chosen.sizes], body_bytes_max=BODY_BYTES_MAX)
        return found[0] if found else None

    async def replay(self, selection: Selection, *, limit: int, body: bytes | None = None) -> Dealt:
        """Publish letters under their original routing keys, the oldest first; those confirmed are gone.

        At most `limit`; with `body` in place of their own. Where the broker is lost meanwhile, some may have
        been published and be here still.
        """
        done, refused, handled = 0, list[tuple[StoredLetter, str]](), 0
        async with _bounded() as deadline:
            chosen = await self._choose(selection, limit=limit)
            for ids in chosen.chunks():
                if time.monotonic() > deadline:
                    break
                letters = await self._read(ids, body_bytes_max=_WHOLE)
                cut = [each for each in letters if each.body_truncated and body is None]
                whole = [each for each in letters if each not in cut]
                refused += [(each, _cut(each)) for each in cut]
                confirmed, stayed = await self._publish(whole, body)
                reached(CrashPoint.DEAD_LETTERS_SENT)
                await self._database.fetchval("SELECT turnstile.delete_dead_letters($1)", confirmed)
                refused += stayed
                done += len(confirmed)
                handled += len(ids)
        logger.info(
            "dead_letters_replayed",
            extra={"letters": done, "refused": len(refused), "edited": body is not None},
        )
        left = chosen.beyond + len(chosen.sizes) - handled
        return Dealt(done=done, refused=refused, missing=chosen.missing, left=left)

    async def purge(self, selection: Selection, *, limit: int) -> Dealt:
        """Delete letters, the oldest first, at most `limit`."""
        done = handled = 0
        async with _bounded() as deadline:
            chosen = await self._choose(selection, limit=limit)
            for ids in chosen.chunks():
                if time.monotonic() > deadline:
                    break
                done += await self._database.fetchval("SELECT turnstile.delete_dead_letters($1)", ids)
                handled += len(ids)
        logger.warning("dead_letters_purged", extra={"letters": done})
        left = chosen.beyond + len(chosen.sizes) - handled
        return Dealt(done=done, missing=chosen.missing, left=left)

    async def _choose(self, selection: Selection, *, limit: int) -> _Chosen:
        if not selection.names:
            rows = await self._database.fetch(query("dead_letter_sizes"), selection.code, limit)
            total = rows[0]["total"] if rows else 0
            sizes = [(row["id"], row["stored_bytes"]) for row in rows]
            return _Chosen(sizes=sizes, missing=[], beyond=total - len(sizes))
        names = [name for name in dict.fromkeys(selection.names) if "\0" not in name]
        rows = await self._database.fetch(query("dead_letter_names"), names, [_as_id(name) for name in names])
        found = {row["name"] for row in rows}
        sizes = list({row["id"]: row["stored_bytes"] for row in rows}.items())
        missing = [name for name in selection.names if name not in found]
        return _Chosen(sizes=sizes[:limit], missing=missing, beyond=len(sizes[limit:]))

    async def _read(self, ids: Sequence[int], *, body_bytes_max: int) -> list[StoredLetter]:
        rows = await self._database.fetch(query("dead_letter"), ids, body_bytes_max)
        return [_letter(row) for row in rows]

    async def _publish(
        self, letters: Sequence[StoredLetter], body: bytes | None
    ) -> tuple[list[int], list[tuple[StoredLetter, str]]]:
        """Return the ids of those confirmed, and the others with the reason."""
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
    """Bound a change, and say until when its next chunk may begin; raises Unavailable."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            yield time.monotonic() + _BEGIN_SECONDS
    except TimeoutError:
        raise Unavailable(
            f"broker or database: no answer within {_TIMEOUT_SECONDS:g} s; list the dead letters before you "
            "repeat it"
        ) from None


def _as_id(name: str) -> int | None:
    """Return the id that a name of digits is; 0, which no row has, where it is too large."""
    if not (name.isascii() and name.isdigit()):
        return None
    return int(name) if len(name) <= 18 else 0


def _letter(row: "asyncpg.Record") -> StoredLetter:
    fields: Mapping[str, Any] = dict(row.items())
    return StoredLetter(**{**fields, "headers": from_json(fields["headers"])})


def _cut(letter: StoredLetter) -> str:
    return (
        f"only the beginning of its body of {letter.body_bytes} bytes is stored; replay it with another body"
    )


def _why(letter: StoredLetter, outcome: Publication) -> str:
    if outcome is Publication.RETURNED:
        return f"no queue takes {letter.original_routing_key!r}"
    return f"the queue that takes {letter.original_routing_key!r} is full or broken"
