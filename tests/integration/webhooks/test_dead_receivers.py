"""Receivers that accept and never answer, and names that are never resolved, hold up nobody else (P9)."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.webhooks.delivering import delivering, ended
from tests.integration.webhooks.receiver import Receiver, answer, receiving
from tests.support.protocol import Protocol

ORIGINS = 200
HEALTHY_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class Swallower:
    """Listens on all of 127.0.0.0/8, each address an origin, and answers nobody until it is let go."""

    port: int = 0
    posts: int = 0
    _let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def let_go(self) -> None:
        self._let_go.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        except asyncio.IncompleteReadError:
            # Given up before it was posted.
            writer.close()
            return
        self.posts += 1
        await self._let_go.wait()
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
        swallower.let_go()
        listener.close()


async def dead_ends(protocol: Protocol, origin: str, count: int = ORIGINS, *, each: int = 2) -> None:
    """Have ends that are due at so many origins; `origin` is SQL with the number `n`."""
    ids = await ended(protocol, "http://dead.example/hook", count * each)
    await protocol.connection.execute(
        f"UPDATE webhook_delivery d SET origin = o.origin, url = o.origin || '/hook' FROM ("
        f"  SELECT i.id, {origin} AS origin FROM (SELECT id, ord % {count} AS n"
        f"  FROM unnest($1::bigint[]) WITH ORDINALITY u(id, ord)) i) o WHERE d.execution_id = o.id",
        ids,
    )


async def seconds_until_delivered(protocol: Protocol, *ids: int) -> float:
    """Wait for these, for much longer than it may take."""
    start = time.monotonic()
    while time.monotonic() - start < 60:
        delivered = await protocol.column(
            "SELECT execution_id FROM webhook_delivery WHERE state = 'delivered'"
        )
        if set(ids) <= set(delivered):
            return time.monotonic() - start
        await asyncio.sleep(0.05)
    return time.monotonic() - start


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


@pytest.fixture
def names_that_hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the system's resolver answer for names that begin with `hangs` only at the end of the test."""
    asked, over = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if str(host).startswith("hangs") and not options.get("flags"):
            over.wait(120)
            raise socket.gaierror(socket.EAI_AGAIN, "nobody answered")
        return asked(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    over.set()


async def test_receivers_that_swallow_what_they_get_do_not_hold_up_a_healthy_one(
    protocol: Protocol, database_url: str, receiver: Receiver
) -> None:
    async with swallowing() as dead:
        # Neither the oldest nor the newest.
        await dead_ends(protocol, f"'http://127.1.0.' || n + 1 || ':{dead.port}'", ORIGINS // 2)
        healthy = await ended(protocol, receiver.url, 20)
        await dead_ends(protocol, f"'http://127.2.0.' || n + 1 || ':{dead.port}'", ORIGINS // 2)
        async with delivering(database_url, webhook_timeout=10.0):
            took = await seconds_until_delivered(protocol, *healthy)
            # Its next ones find a place at once, while all the others are tried and hang.
            again = await ended(protocol, receiver.url, 20)
            took_again = await seconds_until_delivered(protocol, *again)
            dead.let_go()
    assert took < HEALTHY_SECONDS
    assert took_again < HEALTHY_SECONDS
    assert dead.posts > 0


async def test_names_that_are_never_resolved_do_not_hold_up_a_healthy_one(
    protocol: Protocol, database_url: str, receiver: Receiver, names_that_hang: None
) -> None:
    await dead_ends(protocol, "'http://hangs-' || n || '.example:80'")
    healthy = await ended(protocol, receiver.url, 5)
    healthy += await ended(protocol, f"http://localhost:{receiver.port}/hook", 5)
    async with delivering(database_url, webhook_timeout=6.0):
        took = await seconds_until_delivered(protocol, *healthy)
        # What hangs need not be waited for any longer.
        await protocol.connection.execute("UPDATE webhook_delivery SET due_at = now() + interval '1 d'")
    assert took < HEALTHY_SECONDS


async def test_one_that_was_dead_gets_all_that_is_due_once_it_answers(
    protocol: Protocol, database_url: str
) -> None:
    async with swallowing() as dead:
        ids = await ended(protocol, f"http://127.0.0.1:{dead.port}/hook", 30)
        async with delivering(database_url, webhook_timeout=2.0, webhook_attempts=100):

            async def is_silent() -> bool:
                return bool(await protocol.column("SELECT 1 FROM webhook_delivery WHERE last_error <> ''"))

            while not await is_silent():
                await asyncio.sleep(0.05)
            dead.let_go()
            await seconds_until_delivered(protocol, *ids)
    assert set(await protocol.column("SELECT state FROM webhook_delivery")) == {"delivered"}


async def test_a_slow_one_among_dead_ones_is_delivered_and_no_try_is_counted_that_was_cut_short(
    protocol: Protocol, database_url: str
) -> None:
    async with swallowing() as dead, receiving() as slow:
        slow.delay_seconds = 1.5
        await dead_ends(protocol, f"'http://127.2.0.' || n + 1 || ':{dead.port}'", 40, each=1)
        (one,) = await ended(protocol, slow.url)
        async with delivering(
            database_url,
            webhook_timeout=3.0,
            webhook_concurrency=64,
            webhook_attempts=2,
            webhook_retry_delay=30.0,
        ):
            await seconds_until_delivered(protocol, one)
            dead.let_go()
    row = await protocol.connection.fetchrow("SELECT * FROM webhook_delivery WHERE execution_id = $1", one)
    assert row is not None
    assert (row["state"], row["attempts"]) == ("delivered", 1)
