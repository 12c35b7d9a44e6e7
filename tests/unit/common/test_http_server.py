"""A connection on which nothing moves is closed; a slow answer, and a slow reader, are not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from turnstile.common.http_server import HttpServer, listen

PATIENCE_SECONDS = 0.5
WITHIN_SECONDS = 30.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 64_000_000


class Application:
    """Answers late, or with much."""

    def __init__(self) -> None:
        self.late_seconds = 0.0
        self.body = b"done"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await asyncio.sleep(self.late_seconds)
        length = [(b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def server(application: Application) -> AsyncIterator[HttpServer]:
    listener = listen("127.0.0.1", 0, settings="TURNSTILE_HTTP")
    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off")
    server = HttpServer(config, patience_seconds=PATIENCE_SECONDS)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = True
    await serving


@asynccontextmanager
async def connected(
    server: HttpServer, *, limit: int = 2**16
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(WITHIN_SECONDS):
        reader, writer = await asyncio.open_connection(
            *server.servers[0].sockets[0].getsockname(), limit=limit
        )
        try:
            yield reader, writer
        finally:
            writer.close()


async def all_are_gone(server: HttpServer) -> None:
    while server.server_state.connections:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", REQUEST[:20]])
async def test_who_sends_no_whole_request_is_sent_away(server: HttpServer, sent: bytes) -> None:
    async with connected(server) as (reader, writer):
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_an_answer_may_take_its_time(server: HttpServer, application: Application) -> None:
    application.late_seconds = 4 * PATIENCE_SECONDS
    async with connected(server) as (reader, writer):
        writer.write(REQUEST)
        assert (await reader.readuntil(b"\r\n")).endswith(b"200 OK\r\n")


async def test_who_takes_nothing_of_an_answer_is_sent_away(
    server: HttpServer, application: Application
) -> None:
    application.body = LARGE
    async with connected(server, limit=1) as (reader, writer):
        writer.write(REQUEST)
        assert await reader.read(1)
        await all_are_gone(server)


async def test_who_takes_it_slowly_gets_it_all(server: HttpServer, application: Application) -> None:
    application.body = LARGE
    taken = 0
    async with connected(server, limit=1_000_000) as (reader, writer):
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        while taken < len(LARGE):
            # Each piece within the patience, all of them together beyond it.
            taken += len(await reader.read(2_000_000))
            await asyncio.sleep(PATIENCE_SECONDS / 10)
