"""GET /executions/{id}?wait=30s: answers when the execution has ended, or when the time is over."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Message

from tests.support.served import Served
from tests.support.traffic import until
from turnstile.common.domain.errors import Overloaded
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.http import HttpServer, listen
from turnstile.executor.api import ends
from turnstile.executor.api.ends import Ends
from turnstile.executor.history.executions import Executions
from turnstile.executor.queries.read_limiter import ReadLimiter

_LONG = 30.0


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a", max_concurrent=2)
    api.join()
    return api


async def _running(api: Served) -> int:
    execution_id = int((await api.submit("a"))["id"])
    await api.start(execution_id)
    return execution_id


async def test_the_answer_comes_when_the_execution_has_ended(api: Served) -> None:
    one = await _running(api)
    of_api: Ends = api.app.state.parts.ends
    waits = [asyncio.create_task(api.get(f"/executions/{one}", wait="30s")) for _ in range(2)]
    await until(lambda: of_api.readings > 1, "both wait")
    assert not any(each.done() for each in waits)
    began_at = time.monotonic()
    api.worker.end(one)
    found = await asyncio.gather(*waits)
    assert [each["status"] for each in found] == ["completed"] * 2
    assert time.monotonic() - began_at < _LONG / 2
    # What has ended is answered at once.
    assert (await api.get(f"/executions/{one}", wait="60s"))["status"] == "completed"


async def test_the_answer_comes_when_the_time_is_over(api: Served) -> None:
    one = await _running(api)
    assert (await api.get(f"/executions/{one}", wait="200ms"))["status"] == "running"
    assert (await api.get(f"/executions/{one}", wait="0"))["status"] == "running"


@pytest.mark.parametrize("wait", ["soon", "61s", "-1", ""])
async def test_a_wait_that_is_no_time_is_refused_with_its_field(api: Served, wait: str) -> None:
    one = await _running(api)
    answer = await api.http.get(f"/api/v1/executions/{one}", params={"wait": wait})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert answer.json()["detail"].startswith("wait: ")


async def test_an_unknown_execution_is_answered_at_once(api: Served) -> None:
    answer = await api.http.get("/api/v1/executions/99999", params={"wait": "30s"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_wait_goes_on_while_the_leader_changes(api: Served) -> None:
    await api.define("never", max_concurrent=0)
    one = int((await api.submit("never"))["id"])
    of_api: Ends = api.app.state.parts.ends
    wait = asyncio.create_task(api.get(f"/executions/{one}", wait="60s"))
    await until(lambda: of_api._waits, "it waits")
    await api.leader.kill()
    api.installation.lead("b")
    answer = await api.http.post(f"/api/v1/executions/{one}/cancel")
    assert answer.status_code == 202
    assert (await asyncio.wait_for(wait, _LONG))["status"] == "cancelled"


@pytest.fixture
async def waits(api: Served) -> AsyncIterator[Ends]:
    stopping = asyncio.Event()
    yield Ends(Executions(api.database, ReadLimiter()), stopping)
    stopping.set()


async def _stays() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def test_a_client_that_leaves_waits_no_longer_and_nothing_is_read_for_it(api: Served) -> None:
    one = await _running(api)
    of_api: Ends = api.app.state.parts.ends
    listener = listen("127.0.0.1", 0, settings="TURNSTILE_HTTP")
    server = HttpServer(uvicorn.Config(api.app, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET /api/v1/executions/%d?wait=60s HTTP/1.1\r\nHost: localhost\r\n\r\n" % one)
    await until(lambda: of_api._waits, "it waits")
    writer.close()
    await until(lambda: not of_api._waits, "it is gone", deadline_seconds=_LONG / 2)
    assert of_api._reading is not None
    await asyncio.wait_for(of_api._reading, _LONG / 2)
    server.should_exit = True
    await serving


async def test_many_waits_are_one_reading_and_end_with_the_service_and_more_than_the_limit_are_refused(
    api: Served, waits: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "WAITS_MAX", 50)
    one, other = ExecutionId(await _running(api)), ExecutionId(await _running(api))
    waiting = [
        asyncio.create_task(waits.wait(each, _LONG, _stays)) for each in (one, other) for _ in range(25)
    ]
    await until(lambda: waits._count == 50, "all wait")
    with pytest.raises(Overloaded, match="50 requests wait"):
        await waits.wait(one, _LONG, _stays)
    before, began_at = waits.readings, time.monotonic()
    api.worker.end(one)
    await asyncio.wait_for(asyncio.gather(*waiting[:25]), _LONG / 2)
    assert not any(each.done() for each in waiting[25:])
    assert waits.readings - before <= 2 + (time.monotonic() - began_at) / ends._PAUSE_SECONDS
    waits._stopping.set()
    await asyncio.wait_for(asyncio.gather(*waiting[25:]), _LONG / 2)
