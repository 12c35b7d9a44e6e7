"""`/events` and `/queues` of a running executor, as any client uses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def listening(http: httpx.AsyncClient, path: str = "/events") -> AsyncIterator[AsyncIterator[str]]:
    async with asyncio.timeout(30), http.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.aiter_lines()


async def test_a_stream_begins_with_opening_and_sends_what_changes(env: Environment) -> None:
    await env.put("live.queue", max_concurrent=0)
    async with listening(env.http) as lines:
        async for line in lines:
            if line.startswith("event: "):
                assert line == "event: opening"
                break
        # A poll that began before the request does not have it yet.
        await env.http.get("/queues")
        await env.submit("live.queue")
        async for line in lines:
            if line.startswith("data: ") and "live.queue" in line:
                return


async def test_an_invalid_parameter_is_refused_by_name(env: Environment) -> None:
    for path, named in (
        ("/events?execution_id=0", "execution_id"),
        ("/queues?sort=size", "sort"),
        ("/queues?cursor=x", "cursor"),
        ("/queues?limit=0", "limit"),
    ):
        answer = await env.http.get(path)
        assert answer.status_code == 422
        assert named in answer.json()["detail"]


async def test_an_executor_that_stops_ends_its_streams(env: Environment) -> None:
    other = await env.system.start_executor()
    async with httpx.AsyncClient(base_url=other.http_url, timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {TOKEN}"
        async with listening(http) as lines:
            async for line in lines:
                if line == "event: opening":
                    break
            stopped = asyncio.create_task(other.stop())
            rest = [line async for line in lines]
            assert await stopped == 0
    assert rest[-1] == ""
    log = other.log.read_text()
    assert "Traceback" not in log
    assert "graceful shutdown exceeded" not in log
