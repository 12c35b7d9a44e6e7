"""What people are told about their wait under a real load comes true (P10)."""

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import httpx

from tests.proof.chaos.proxy import CLEAR, Proxy, Weather
from tests.support.history import History, history_of
from tests.support.processes import running
from tests.support.traffic import until

RUNS, LOOKS_MIN = 150, 30
RUN_SECONDS = (0.2, 0.6)
"""So long that what a busy machine adds to a hand-over is little beside it: the load is steady."""
LOOK_SECONDS = 0.1
SLACK = timedelta(milliseconds=50)
"""Between a grant and what a look sees of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    execution_id: int
    looked_at: datetime
    earliest: datetime
    latest: datetime


async def test_under_a_steady_load_four_of_five_start_when_it_was_expected(
    database_url: str, amqp_url: str
) -> None:
    async with (
        Proxy(amqp_url).standing() as broker,
        running(database_url, broker.url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http,
    ):
        looks = await look_on(http, history, "tiny.5")
        rows = await history.rows("SELECT id, started_at FROM execution")
        starts = {row["id"]: row["started_at"] for row in rows}
        held = [look.earliest - SLACK <= starts[look.execution_id] <= look.latest for look in looks]
        widths = [
            (look.latest - look.earliest) / (starts[look.execution_id] - look.looked_at) for look in looks
        ]
        assert len(held) >= LOOKS_MIN
        assert sum(held) >= 0.8 * len(held)
        assert median(widths) < 1.5
        await look_without_a_broker(http, broker)


async def look_on(http: httpx.AsyncClient, history: History, ref: str) -> list[Look]:
    """Submit a load that lasts some seconds; look at one that waits after the other, until it is over."""
    dice = random.Random(4)
    bodies = [{"action_ref": ref, "parameters": {"seconds": dice.uniform(*RUN_SECONDS)}} for _ in range(RUNS)]
    answer = await http.post("/executions", json=bodies)
    waiting = [item["id"] for item in answer.json()["items"]]
    looks = list[Look]()
    await history.ended(20)
    # The pace of the last few is chance; the simulated loads judge them.
    while len(waiting) > 10:
        looked_at = datetime.now(UTC)
        shown = await one(http, dice.choice(waiting[5:]))
        if shown["status"] == "queued" and shown["position"] >= 10:
            ends = {name: datetime.fromisoformat(text) for name, text in shown["estimated_start"].items()}
            looks.append(Look(execution_id=shown["id"], looked_at=looked_at, **ends))
            await asyncio.sleep(LOOK_SECONDS)
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
