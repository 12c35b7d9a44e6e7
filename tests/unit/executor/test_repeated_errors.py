"""Unexpected errors of many requests are few lines in the log, the first with its traceback."""

import asyncio
import traceback
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from turnstile.common.http import HttpServer, listen
from turnstile.executor.api import problems


def application() -> FastAPI:
    app = FastAPI()
    problems.install(app)

    def break_down() -> None:
        raise RuntimeError("the cause")

    @app.get("/one")
    async def one() -> None:
        break_down()

    @app.get("/two")
    async def two(kind: str = "") -> None:
        if kind:
            raise LookupError(kind)
        break_down()

    return app


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    listener = listen("127.0.0.1", 0, settings="TURNSTILE_HTTP")
    server = HttpServer(uvicorn.Config(application(), log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    while not server.started:
        await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    server.should_exit = True
    await serving


async def test_many_failing_requests_are_a_line_for_each_route_and_kind_of_error(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/one", "/two", "/two?kind=x"):
        for _ in range(20):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    shown = [
        (record.levelname, record.getMessage(), record.__dict__["error_type"], record.__dict__["reason"])
        for record in caplog.records
    ]
    assert shown == [
        ("ERROR", "http_request_failed", "RuntimeError", "the cause"),
        ("ERROR", "http_request_failed", "RuntimeError", "the cause"),
        ("ERROR", "http_request_failed", "LookupError", "x"),
    ]
    for record, route in zip(caplog.records, ("one", "two", "two"), strict=True):
        assert record.exc_info is not None
        calls = [frame.name for frame in traceback.extract_tb(record.exc_info[2])]
        assert route in calls
    assert "test_repeated_errors.py" in caplog.records[0].__dict__["location"]
