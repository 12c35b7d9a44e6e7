"""`/events` and `/queues` of a running executor, as any program may use them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.integration.dashboard.conftest import TOKEN
from tests.support.stage import Stage
from tests.support.traffic import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


@asynccontextmanager
async def listening(http: httpx.AsyncClient, path: str = "/events") -> AsyncIterator[AsyncIterator[str]]:
    async with asyncio.timeout(30), http.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.aiter_lines()


async def test_nothing_is_told_or_listed_without_a_token(stage: Stage) -> None:
    async with httpx.AsyncClient(base_url=stage.system.http_url) as http:
        answers = [await http.get(path) for path in ("/events", "/api/v1/events", "/api/v1/queues")]
        assert [answer.status_code for answer in answers] == [401] * 3
        assert (await http.get("/")).status_code == 200


async def test_a_stream_opens_with_a_greeting_and_tells_what_moves(stage: Stage) -> None:
    await stage.put("told.live", max_concurrent=0)
    async with listening(stage.http) as lines:
        async for line in lines:
            if line.startswith("event: "):
                assert line == "event: opening"
                break
        # A reading that began before the request does not have it yet.
        await stage.http.get("/queues")
        await stage.submit("told.live")
        async for line in lines:
            if line.startswith("data: ") and "told.live" in line:
                return


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/events?executions=1", "executions"),
        ("/events?execution_id=0", "execution_id"),
        ("/events?execution_id=x", "execution_id"),
        ("/queues?sort=size", "sort"),
        ("/queues?cursor=x", "cursor"),
        ("/queues?limit=0", "limit"),
        ("/queues?page=2", "page"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(stage: Stage, path: str, named: str) -> None:
    answer = await stage.http.get(path)
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


async def test_the_pages_of_queues_hold_every_queue_once(stage: Stage) -> None:
    for number in range(7):
        await stage.put(f"paged.{number}", max_concurrent=1)

    async def all_are_seen() -> bool:
        return bool((await stage.http.get("/queues", params={"search": "paged."})).json()["total"] == 7)

    await until(all_are_seen, "a reading with all of them")
    found: list[str] = []
    query: dict[str, str | None] = {"search": "paged.", "limit": "3"}
    while query.get("cursor", "") is not None:
        page = (await stage.http.get("/queues", params=query)).json()
        found += [item["action_ref"] for item in page["items"]]
        query["cursor"] = page["next_cursor"]
    assert found == [f"paged.{number}" for number in range(7)]


async def test_an_executor_that_stops_ends_its_streams_and_stops_in_order(stage: Stage) -> None:
    other = await stage.system.start_executor()
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
