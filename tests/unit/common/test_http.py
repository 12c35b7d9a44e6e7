"""HTTP servers close stalled connections, not slow ones; `Retry-After` is read as RFC 9110 says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from turnstile.common.http import HttpServer, listen

STALL_SECONDS = 0.5
WITHIN_SECONDS = 30.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 64_000_000


class Application:
    """Answers late, or with a large body."""

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
    server = HttpServer(config, stall_seconds=STALL_SECONDS)
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


@pytest.mark.parametrize("sent", [b"", REQUEST[:20]])
async def test_a_connection_without_a_whole_request_is_closed(server: HttpServer, sent: bytes) -> None:
    async with connected(server) as (reader, writer):
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_late_response_is_awaited(server: HttpServer, application: Application) -> None:
    application.late_seconds = 4 * STALL_SECONDS
    async with connected(server) as (reader, writer):
        writer.write(REQUEST)
        assert (await reader.readuntil(b"\r\n")).endswith(b"200 OK\r\n")


async def test_a_connection_that_does_not_read_its_response_is_closed(
    server: HttpServer, application: Application
) -> None:
    application.body = LARGE
    async with connected(server, limit=1) as (reader, writer):
        writer.write(REQUEST)
        assert await reader.read(1)
        while server.server_state.connections:
            await asyncio.sleep(0.01)


async def test_a_slow_reader_receives_the_whole_response(
    server: HttpServer, application: Application
) -> None:
    application.body = LARGE
    received_bytes = 0
    async with connected(server, limit=1_000_000) as (reader, writer):
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        while received_bytes < len(LARGE):
            # Each piece arrives within the limit, all together take longer.
            received_bytes += len(await reader.read(2_000_000))
            await asyncio.sleep(STALL_SECONDS / 10)


async def test_fifty_invalid_requests_are_one_line_in_the_log(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        async with connected(server) as (reader, writer):
            writer.write(b"no request\r\n\r\n")
            assert b" 400 " in await reader.readuntil(b"\r\n")
    (line,) = caplog.records
    assert (line.getMessage(), line.__dict__["reason"]) == (
        "http_server_warning",
        "Invalid HTTP request received.",
    )
