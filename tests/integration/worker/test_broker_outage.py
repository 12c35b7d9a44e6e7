"""An outage of the broker alone, longer than a lease, with real executors and workers (P16).

Whole services: the worker asks an executor over HTTP while both are without the broker.
"""

import asyncio
import re

import httpx
import pytest

from tests.support.environment import Environment, running_environment
from tests.support.traffic import until
from turnstile.localservers import RabbitServer

LEASE_SECONDS = 10.0
"""Twice what the leader needs to give up a broker that is frozen."""
SETTINGS = {"TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS:g}s", "TURNSTILE_HEARTBEAT_INTERVAL": "1s"}
TOKENS = "worker:read:asks-for-its-runs,test:operate:submits-and-cancels"


@pytest.mark.timeout(240)
async def test_a_worker_that_may_ask_the_executors_continues_while_the_broker_is_out(
    controlled_broker: RabbitServer, controlled_amqp_url: str, database_url: str
) -> None:
    async with running_environment(
        database_url,
        controlled_amqp_url,
        workers=0,
        settings=SETTINGS,
        executor_settings={"TURNSTILE_API_TOKENS": TOKENS},
    ) as env:
        env.http.headers["Authorization"] = "Bearer submits-and-cancels"
        await env.start_worker(TURNSTILE_API_URL=env.system.http_url, TURNSTILE_API_TOKEN="asks-for-its-runs")
        held = await env.submit("hold")
        await env.until_status(held, "running")
        await asyncio.to_thread(controlled_broker.pause)
        try:
            await until(
                lambda: _is_unheard(env, 1.5 * LEASE_SECONDS), "more than a lease", deadline_seconds=60
            )
            # A submit is decided meanwhile, and starts after the outage.
            waiting = await env.submit("noop")
        finally:
            await asyncio.to_thread(controlled_broker.resume)
        assert await env.ended(waiting) == ["completed"]
        assert "lease_lost" not in env.worker.log.read_text()
        await env.cancel(held)
        assert await env.ended(held) == ["cancelled"]
        assert await env.attempts(held) == [(1, "cancelled")]


async def _is_unheard(env: Environment, seconds: float) -> bool:
    """Return whether no heartbeat of the worker was answered for so long."""
    async with httpx.AsyncClient() as http:
        scraped = (await http.get(f"{env.worker.http_url}/metrics")).text
    (age_seconds,) = re.findall(r"^turnstile_worker_lease_age_seconds (\S+)$", scraped, re.MULTILINE)
    return float(age_seconds) >= seconds
