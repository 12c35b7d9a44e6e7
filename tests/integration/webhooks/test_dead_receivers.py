"""Receivers that never respond and names that never resolve delay no other receiver (P9)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.integration.webhooks.deliveries import completed, delivering
from tests.integration.webhooks.receiver import Receiver, answer
from turnstile.common.database import Database

ORIGINS = 200
HEALTHY_SECONDS = 5.0
"""As docs/guarantees.md promises for two processors that nothing else uses."""


@dataclass(slots=True, kw_only=True)
class Swallower:
    """Listens on all of 127.0.0.0/8, each address an origin, and never responds until it is released."""

    port: int = 0
    posts: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._released.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        except asyncio.IncompleteReadError:
            # Given up before it was posted.
            writer.close()
            return
        self.posts += 1
        await self._released.wait()
        writer.write(answer("204 Done"))
        writer.close()


@asynccontextmanager
async def swallowing() -> AsyncIterator[Swallower]:
    swallower = Swallower()
    listener = await asyncio.start_server(swallower.handle, "0.0.0.0", 0, backlog=4096)
    swallower.port = listener.sockets[0].getsockname()[1]
    try:
        yield swallower
    finally:
        swallower.release()
        listener.close()


async def dead_ends(database: Database, origin: str, count: int = ORIGINS, *, each: int = 2) -> None:
    """Have deliveries that are due at `count` origins; `origin` is SQL with the number `n`."""
    ids = await completed(database, "http://dead.example/hook", count * each)
    await database.fetch(
        f"UPDATE ledger.webhook d SET origin = o.origin, url = o.origin || '/hook' FROM ("
        f"  SELECT i.id, {origin} AS origin FROM (SELECT id, ord % {count} AS n"
        f"  FROM unnest($1::bigint[]) WITH ORDINALITY u(id, ord)) i) o WHERE d.execution_id = o.id",
        ids,
    )


async def seconds_until_delivered(database: Database, *ids: int) -> float:
    """Wait for these, for much longer than it may take."""
    start = time.monotonic()
    while time.monotonic() - start < 60:
        rows = await database.fetch("SELECT execution_id FROM ledger.webhook WHERE state = 'delivered'")
        if set(ids) <= {row["execution_id"] for row in rows}:
            return time.monotonic() - start
        await asyncio.sleep(0.05)
    return time.monotonic() - start


@pytest.mark.alone
async def test_receivers_that_never_respond_delay_no_healthy_receiver(
    database: Database, database_url: str, receiver: Receiver
) -> None:
    async with swallowing() as dead:
        # Neither the oldest nor the newest.
        await dead_ends(database, f"'http://127.1.0.' || n + 1 || ':{dead.port}'", ORIGINS // 2)
        healthy = await completed(database, receiver.url, 20)
        await dead_ends(database, f"'http://127.2.0.' || n + 1 || ':{dead.port}'", ORIGINS // 2)
        async with delivering(database_url, webhook_timeout=10.0):
            took = await seconds_until_delivered(database, *healthy)
            # Its next deliveries start at once, while all others hang.
            again = await completed(database, receiver.url, 20)
            took_again = await seconds_until_delivered(database, *again)
            dead.release()
    assert took < HEALTHY_SECONDS
    assert took_again < HEALTHY_SECONDS
    assert dead.posts > 0
