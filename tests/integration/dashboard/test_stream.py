"""`/events` and `/queues` of a running executor, as any client uses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.integration.dashboard.conftest import TOKEN
from tests.support.environment import Environment
from tests.support.traffic import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def listening(http: httpx.AsyncClient, path: str = "/events") -> AsyncIterator[AsyncIterator[str]]:
    async with asyncio.timeout(30), http.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.aiter_lines()


async def test_events_and_queues_need_a_token(env: Environment) -> None:
    async with httpx.AsyncClient(base_url=env.system.http_url) as http:
        answers = [await http.get(path) for path in ("/events", "/api/v1/events", "/api/v1/queues")]
        assert [answer.status_code for answer in answers] == [401] * 3
        assert (await http.get("/")).status_code == 200


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
        ("/events?executions=1", "executions"),
        ("/events?execution_id=0", "execution_id"),
        ("/queues?sort=size", "sort"),
        ("/queues?cursor=x", "cursor"),
        ("/queues?limit=0", "limit"),
        ("/queues?page=2", "page"),
    ):
        answer = await env.http.get(path)
        assert answer.status_code == 422
        assert named in answer.json()["detail"]


async def test_the_pages_of_queues_have_every_queue_once(env: Environment) -> None:
    for number in range(7):
        await env.put(f"paged.{number}", max_concurrent=1)

    async def all_are_seen() -> bool:
        return bool((await env.http.get("/queues", params={"search": "paged."})).json()["total"] == 7)

    await until(all_are_seen, "a reading with all of them")
    found: list[str] = []
    query: dict[str, str | None] = {"search": "paged.", "limit": "3"}
    while query.get("cursor", "") is not None:
        page = (await env.http.get("/queues", params=query)).json()
        found += [item["action_ref"] for item in page["items"]]
        query["cursor"] = page["next_cursor"]
    assert found == [f"paged.{number}" for number in range(7)]


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
