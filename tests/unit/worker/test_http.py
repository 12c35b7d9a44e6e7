"""URLs: the requests they get, and what becomes of their responses."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, result_of
from turnstile.worker.core.outcomes import Cancelled, TimedOut
from turnstile.worker.runners.base import Call, RunLimits, RunReport
from turnstile.worker.runners.http import HttpRunner


class Server:
    """Responds to every request with `response`; stores the last request; runs calls against itself."""

    call: Call

    def __init__(self, runner: HttpRunner) -> None:
        self.runner = runner
        self.response: bytes | None = b""
        self.head = ""
        self.body = b""
        self.requested = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in self.head.lower().splitlines() if line.startswith("content-length:"))
        self.body = await reader.readexactly(int(length.split(":")[1]))
        self.requested.set()
        if self.response is None:
            await reader.read()
            self.disconnected.set()
        else:
            writer.write(self.response)
        writer.close()

    def responds(self, status: str, body: bytes = b"", *headers: str) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
        self.response = "\r\n".join(head).encode() + body

    async def run(self, **changes: Any) -> RunReport:
        return await self.runner.run(replace(self.call, **changes))


@pytest.fixture
async def server(limits: RunLimits, make_call: MakeCall) -> AsyncIterator[Server]:
    async with httpx.AsyncClient(trust_env=False) as client:
        server = Server(HttpRunner(limits, client))
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/hook"
        server.call = replace(make_call("hook", a=1, b="ü"), entrypoint=url)
        yield server
        listener.close()


async def test_the_request_names_the_attempt_and_the_json_response_is_the_result(server: Server) -> None:
    server.responds("200 OK", b'{"done": [1, 2]}')
    report = await server.run()
    assert result_of(report) == '{"done":[1,2]}'
    assert "POST" in report.log
    assert json.loads(server.body) == {
        "execution_id": server.call.execution_id,
        "attempt": 1,
        "action_ref": "hook",
        "parameters": {"a": 1, "b": "ü"},
    }
    head = server.head.lower()
    assert f"idempotency-key: {server.call.execution_id}-1\r\n" in head
    assert f"traceparent: {server.call.traceparent}\r\n" in head
    assert "content-type: application/json\r\n" in head
    server.responds("204 No Content")
    assert result_of(await server.run()) == "null"


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        ("302 Found", False),
        ("400 Bad Request", False),
        ("404 Not Found", False),
        ("408 Request Timeout", True),
        ("425 Too Early", True),
        ("429 Too Many Requests", True),
        ("500 Internal Server Error", True),
        ("503 Service Unavailable", True),
    ],
)
async def test_a_status_that_may_change_is_retried_after_the_servers_delay(
    server: Server, status: str, retryable: bool
) -> None:
    server.responds(status, b"so sorry", "Retry-After: 120")
    outcome = failed_in(await server.run())
    assert (outcome.failure.type, outcome.failure.message) == ("HttpStatus", f"{status}: so sorry")
    assert (outcome.retryable, outcome.delay_seconds) == (retryable, 120)


async def test_a_response_without_json_is_not_retried(server: Server) -> None:
    server.responds("200 OK", b"<html>")
    outcome = failed_in(await server.run())
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)
    server.responds("200 OK", b"1", "Content-Encoding: gzip")
    assert failed_in(await server.run()).failure.type == "InvalidResult"


async def test_a_response_above_the_limit_is_not_read_to_its_end(server: Server) -> None:
    # The server never sends the rest: a wait for it would end in the timeout.
    server.response = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"1" * 300_000
    outcome = failed_in(await server.run())
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)


async def test_a_broken_connection_is_retried(server: Server) -> None:
    server.response = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n1"
    assert failed_in(await server.run()).failure.type == "RemoteProtocolError"
    server.response = b""
    assert failed_in(await server.run()).retryable
    outcome = failed_in(await server.run(entrypoint="http://127.0.0.1:1/"))
    assert (outcome.failure.type, outcome.retryable) == ("ConnectError", True)


@pytest.mark.parametrize("url", ["ftp://example.org/", "http://"])
async def test_an_invalid_url_is_not_retried(server: Server, url: str) -> None:
    assert not failed_in(await server.run(entrypoint=url)).retryable


async def test_a_slow_response_ends_with_the_timeout(server: Server) -> None:
    disconnected = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1")
            await asyncio.sleep(0.02)
        disconnected.set()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        async with asyncio.timeout(5):
            report = await server.run(entrypoint=url, timeout_seconds=0.2)
            await disconnected.wait()
    assert isinstance(report.outcome, TimedOut)


async def test_a_cancel_closes_the_connection(server: Server) -> None:
    server.response = None
    running: asyncio.Task[RunReport] = asyncio.create_task(server.run())
    async with asyncio.timeout(5):
        await server.requested.wait()
        server.call.stop.request("cancel", "no")
        assert isinstance((await running).outcome, Cancelled)
        await server.disconnected.wait()
