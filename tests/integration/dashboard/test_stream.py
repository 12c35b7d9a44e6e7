"""`/events` and `/queues` of a running executor, as any client uses them."""

import asyncio

import httpx
import pytest

from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_an_executor_that_stops_ends_its_streams(env: Environment) -> None:
    other = await env.system.start_executor()
    async with httpx.AsyncClient(base_url=other.http_url, timeout=30) as http:
        http.headers["Authorization"] = f"Bearer {TOKEN}"
        async with asyncio.timeout(30), http.stream("GET", "/events") as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
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
