"""What people are told about their wait under a real load comes true (P10)."""

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx

from tests.chaos.proxy import CLEAR, Proxy, Weather
from tests.e2e.history import History, history_of
from tests.e2e.processes import running
from tests.e2e.traffic import until

RUNS, LOOKS_MIN = 90, 15
SLACK = timedelta(milliseconds=50)
"""Between a grant and what a look sees of it."""


async def test_under_load_what_waits_starts_when_it_was_expected(database_url: str, amqp_url: str) -> None:
    async with (
        Proxy(amqp_url).standing() as broker,
        running(database_url, broker.url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http,
    ):
        looks = await look_on(http, history, "tiny.2")
        assert len(looks) >= LOOKS_MIN
        rows = await history.rows("SELECT id, started_at FROM execution")
        starts = {row["id"]: row["started_at"] for row in rows}
        spans = [
            (starts[execution_id], *(datetime.fromisoformat(expected[end]) for end in ("earliest", "latest")))
            for execution_id, expected in looks
        ]
        held = sum(earliest - SLACK <= start <= latest for start, earliest, latest in spans)
        assert held >= 0.8 * len(looks), spans
        width = sum(((latest - earliest) for _, earliest, latest in spans), timedelta()) / len(looks)
        assert width < (max(starts.values()) - min(starts.values())) / 2
        await look_without_a_broker(http, broker)


async def look_on(http: httpx.AsyncClient, history: History, ref: str) -> list[tuple[int, Mapping[str, str]]]:
    """Submit a load that lasts some seconds; look at one that waits after the other, until it is over."""
    dice = random.Random(4)
    bodies = [{"action_ref": ref, "parameters": {"seconds": dice.uniform(0.05, 0.15)}} for _ in range(RUNS)]
    answer = await http.post("/executions", json=bodies)
    waiting = [item["id"] for item in answer.json()["items"]]
    looks = list[tuple[int, Mapping[str, str]]]()
    await history.ended(20)
    while waiting:
        shown = await one(http, dice.choice(waiting))
        if shown["status"] == "queued":
            assert shown["estimated_start"] is not None, shown
            looks.append((shown["id"], shown["estimated_start"]))
        else:
            waiting = [each for each in waiting if each > shown["id"]]
    await history.ended(RUNS)
    return looks


async def look_without_a_broker(http: httpx.AsyncClient, broker: Proxy) -> None:
    broker.weather = Weather(refuses=True)

    async def has_noticed() -> bool:
        return (await http.get("/readyz")).status_code == 503

    await until(has_noticed, "the executor without a broker")
    execution_id = (await http.post("/executions", json={"action_ref": "noop"})).json()["id"]
    shown = await one(http, execution_id)
    assert shown["status"] == "scheduled"
    assert (shown["waiting_on"]["reason"], shown["waiting_on"]["part"]) == ("unavailable", "broker")
    assert shown["waiting_on"]["message"]
    assert shown["estimated_start"] is None
    broker.weather = CLEAR

    async def has_ended() -> bool:
        return bool((await one(http, execution_id))["status"] == "completed")

    await until(has_ended, "the end of what waited for the broker")


async def one(http: httpx.AsyncClient, execution_id: int) -> dict[str, Any]:
    answer = await http.get(f"/executions/{execution_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())
