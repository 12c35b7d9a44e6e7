"""P10: statistics under load equal a recount of the rows, and estimates of the start come true."""

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest

from tests.support.environment import Environment, StartEnvironment
from tests.support.proxy import CLEAR, LinkState, Proxy
from tests.support.traffic import until

RUNS, ESTIMATES_MIN = 150, 30
RUN_SECONDS = (0.2, 0.6)
"""So long that what a busy machine adds to a hand-over is small in comparison: the load is steady."""
PAUSE_SECONDS = 0.1
SLACK = timedelta(milliseconds=50)
"""Between a grant and its visibility."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    execution_id: int
    made_at: datetime
    earliest: datetime
    latest: datetime


@pytest.mark.whole
async def test_under_a_steady_load_four_of_five_start_when_it_was_expected(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    async with Proxy(amqp_url).listening() as broker:
        settings = {"TURNSTILE_AMQP_URL": broker.url}
        async with start_env(executor_settings=settings) as env:
            estimates = await _estimates(env, "tiny.5")
            rows = await env.history.rows("SELECT id, started_at FROM ledger.current_execution")
            starts = {row["id"]: row["started_at"] for row in rows}
            held = [e.earliest - SLACK <= starts[e.execution_id] <= e.latest for e in estimates]
            widths = [(e.latest - e.earliest) / (starts[e.execution_id] - e.made_at) for e in estimates]
            assert len(held) >= ESTIMATES_MIN
            assert sum(held) >= 0.8 * len(held)
            assert median(widths) < 1.5
            await _no_estimate_without_a_broker(env, broker)


async def _estimates(env: Environment, ref: str) -> list[Estimate]:
    """Submit a load of some seconds; read one waiting execution after the other until it is over."""
    chance = random.Random(4)
    waiting = await env.submit_many(
        [{"action_ref": ref, "parameters": {"seconds": chance.uniform(*RUN_SECONDS)}} for _ in range(RUNS)]
    )
    estimates: list[Estimate] = []
    await env.history.ended(20)
    # The pace of the last few is random; the simulated loads test them.
    while len(waiting) > 10:
        made_at = datetime.now(UTC)
        shown = await env.get(chance.choice(waiting[5:]))
        if shown["status"] == "queued" and shown["position"] >= 10:
            ends = {name: datetime.fromisoformat(text) for name, text in shown["estimated_start"].items()}
            estimates.append(Estimate(execution_id=shown["id"], made_at=made_at, **ends))
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            waiting = [each for each in waiting if each > shown["id"]]
    await env.history.ended(RUNS)
    return estimates


async def _no_estimate_without_a_broker(env: Environment, broker: Proxy) -> None:
    broker.state = LinkState(refuses=True)

    async def has_noticed() -> bool:
        return (await env.http.get(f"{env.system.http_url}/readyz")).status_code == 503

    await until(has_noticed, "the executor without a broker")
    execution_id = await env.submit("noop")
    shown = await env.get(execution_id)
    assert shown["status"] in ("queued", "scheduled")
    assert (shown["waiting_on"]["reason"], shown["waiting_on"]["part"]) == ("unavailable", "broker")
    assert shown["waiting_on"]["message"]
    assert shown["estimated_start"] is None
    broker.state = CLEAR
    assert await env.ended(execution_id) == ["completed"]
