"""URLs: what they are sent, what becomes of their answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import httpx
import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, result_of
from turnstile.common.domain.outcomes import Cancelled, TimedOut
from turnstile.worker.runners import Call, RunLimits, RunReport
from turnstile.worker.runners.http import HttpRunner

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers every request with `answer`; keeps the last request."""

    def __init__(self) -> None:
        self.answer: bytes | None = b""
        self.head = ""
        self.body = b""
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in self.head.lower().splitlines() if line.startswith("content-length:"))
        self.body = await reader.readexactly(int(length.split(":")[1]))
        self.asked.set()
        if self.answer is None:
            await reader.read()
            self.left.set()
        else:
            writer.write(self.answer)
        writer.close()

    def says(self, status: str, body: bytes = b"", *headers: str) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
        self.answer = "\r\n".join(head).encode() + body


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/hook"
    yield server
    listener.close()


@pytest.fixture
async def runner(limits: RunLimits) -> AsyncIterator[HttpRunner]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield HttpRunner(limits, client)


@pytest.fixture
def call(server: Server, make_call: MakeCall) -> Call:
    return replace(make_call("hook", a=1, b="ü"), entrypoint=server.url)


async def test_it_is_told_what_and_which_attempt_and_its_json_is_the_result(
    runner: HttpRunner, server: Server, call: Call
) -> None:
    server.says("200 OK", b'{"done": [1, 2]}')
    report = await runner.run(call)
    assert result_of(report) == '{"done":[1,2]}'
    assert "POST" in report.log
    assert json.loads(server.body) == {
        "execution_id": call.execution_id,
        "attempt": 1,
        "action_ref": "hook",
        "parameters": {"a": 1, "b": "ü"},
    }
    head = server.head.lower()
    assert f"idempotency-key: {call.execution_id}-1\r\n" in head
    assert f"traceparent: {call.traceparent}\r\n" in head
    assert "content-type: application/json\r\n" in head


async def test_an_empty_answer_is_null(runner: HttpRunner, server: Server, call: Call) -> None:
    server.says("204 No Content")
    assert result_of(await runner.run(call)) == "null"


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
async def test_only_what_may_pass_another_time_is_retried(
    runner: HttpRunner, server: Server, call: Call, status: str, retryable: bool
) -> None:
    server.says(status, b"so sorry")
    outcome = failed_in(await runner.run(call))
    assert (outcome.failure.type, outcome.failure.message) == ("HttpStatus", f"{status}: so sorry")
    assert outcome.retryable == retryable


async def test_retry_after_is_honoured(runner: HttpRunner, server: Server, call: Call) -> None:
    server.says("503 Service Unavailable", b"", "Retry-After: 120")
    assert failed_in(await runner.run(call)).delay_seconds == 120


async def test_what_is_not_json_fails_for_good(runner: HttpRunner, server: Server, call: Call) -> None:
    server.says("200 OK", b"<html>")
    outcome = failed_in(await runner.run(call))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)
    server.says("200 OK", b"1", "Content-Encoding: gzip")
    assert failed_in(await runner.run(call)).failure.type == "InvalidResult"


async def test_an_answer_above_the_bound_is_not_read_to_its_end(
    runner: HttpRunner, server: Server, call: Call
) -> None:
    # It promises far more than it ever sends: waiting for the rest would end in the timeout.
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"1" * 300_000
    outcome = failed_in(await runner.run(call))
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)


async def test_a_broken_connection_may_be_retried(runner: HttpRunner, server: Server, call: Call) -> None:
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n1"
    assert failed_in(await runner.run(call)).failure.type == "RemoteProtocolError"
    server.answer = b""
    assert failed_in(await runner.run(call)).retryable
    nobody = replace(call, entrypoint="http://127.0.0.1:1/")
    outcome = failed_in(await runner.run(nobody))
    assert (outcome.failure.type, outcome.retryable) == ("ConnectError", True)


@pytest.mark.parametrize("url", ["ftp://example.org/", "http://"])
async def test_a_url_that_is_none_fails_for_good(runner: HttpRunner, call: Call, url: str) -> None:
    assert not failed_in(await runner.run(replace(call, entrypoint=url))).retryable


async def test_a_url_that_the_network_refuses_is_a_failure_too(runner: HttpRunner, call: Call) -> None:
    outcome = failed_in(await runner.run(replace(call, entrypoint="http://127.0.0.1:99999/")))
    assert outcome.failure.message


async def test_a_timeout_closes_the_connection(runner: HttpRunner, server: Server, call: Call) -> None:
    server.answer = None
    report = await runner.run(replace(call, timeout_seconds=0.2))
    assert isinstance(report.outcome, TimedOut)
    async with asyncio.timeout(5):
        await server.left.wait()


async def test_an_answer_that_trickles_is_no_longer_than_the_timeout(runner: HttpRunner, call: Call) -> None:
    left = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1")
            await asyncio.sleep(0.02)
        left.set()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        async with asyncio.timeout(5):
            report = await runner.run(replace(call, entrypoint=url, timeout_seconds=0.2))
            await left.wait()
    assert isinstance(report.outcome, TimedOut)


async def test_a_cancel_closes_the_connection(runner: HttpRunner, server: Server, call: Call) -> None:
    server.answer = None
    running: asyncio.Task[RunReport] = asyncio.create_task(runner.run(call))
    async with asyncio.timeout(5):
        await server.asked.wait()
        call.stop.ask("cancel", "no")
        assert isinstance((await running).outcome, Cancelled)
        await server.left.wait()
