"""P7 and P9 without a server: services start and wait, cancels and timers act in time, all is published
later.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.environment import (
    Environment,
    StartEnvironment,
    running_environment,
)
from tests.support.history import history_of
from tests.support.processes import running
from tests.support.proxy import CLEAR, LinkState, Proxy
from turnstile.common.broker.topology import EXECUTION_COMPLETED

NOWHERE = "127.0.0.1:1"
SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_LEASE_DURATION": "2s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
}


async def test_without_a_database_readyz_names_it_and_a_stop_is_obeyed(amqp_url: str) -> None:
    async with running(f"postgresql://user@{NOWHERE}/none", amqp_url, executors=0, workers=0) as system:
        executor = await system.start_executor(wait=False)
        await executor.until_unready(database="refused", broker=None)
        started = asyncio.get_running_loop().time()
        assert await executor.stop() == 0
        assert asyncio.get_running_loop().time() - started < 10
        assert executor.log.read_text().count("database_unreachable") == 1


async def test_without_a_broker_readyz_names_it_and_requests_are_still_accepted(database_url: str) -> None:
    amqp_url = f"amqp://guest:guest@{NOWHERE}/"
    async with (
        running(database_url, amqp_url, executors=0, workers=0) as system,
        history_of(database_url) as history,
    ):
        executor = await system.start_executor(wait=False)
        await executor.until_unready(broker="refused", database=None)
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            assert (await http.put("/actions/noop", json={})).status_code in (200, 201)
            assert (await http.post("/executions", json={"action_ref": "noop"})).status_code == 202
        assert await history.value("SELECT count(*) FROM ledger.current_execution") == 1


async def test_a_cancel_is_accepted_without_a_broker_and_reaches_the_worker_though_its_message_was_lost(
    start_env: StartEnvironment, amqp_url: str
) -> None:
    settings = {**SETTINGS, "TURNSTILE_LEASE_DURATION": "30s"}
    async with Proxy(amqp_url).listening() as broker:
        own = {"TURNSTILE_AMQP_URL": broker.url}
        async with start_env(settings=settings | own) as env:
            running_id, waiting_id = [await env.submit("hold") for _ in "ab"]
            await env.until_status(running_id, "running")
            broker.state = LinkState(refuses=True)
            await env.cancel(running_id, waiting_id)
            assert [await env.status(i) for i in (running_id, waiting_id)] == ["running", "cancelled"]
            # Only the database has the request.
            await env.executor.kill()
            broker.state = CLEAR
            await env.system.start_executor()
            assert await env.ended(running_id, waiting_id) == ["cancelled"] * 2
            # By the worker itself, which was not lost.
            assert await env.attempts(running_id) == [(1, "cancelled")]
            assert await env.attempts(waiting_id) == []
            assert (
                await env.history.value("SELECT count(*) FROM ledger.worker WHERE gone_at IS NOT NULL") == 0
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An executor, and its link to the broker."""

    env: Environment
    broker: Proxy

    def begin(self) -> None:
        self.broker.state = LinkState(refuses=True)

    def end(self) -> None:
        self.broker.state = CLEAR

    async def submit(self, **fields: Any) -> int:
        return await self.env.submit("a", **fields)

    async def until_all(self, ids: Sequence[int], status: str) -> None:
        for execution_id in ids:
            await self.env.until_status(execution_id, status)


@asynccontextmanager
async def outage(database_url: str, amqp_url: str) -> AsyncIterator[Outage]:
    async with (
        Proxy(amqp_url).listening() as broker,
        running_environment(
            database_url,
            amqp_url,
            workers=0,
            settings=SETTINGS,
            executor_settings={"TURNSTILE_AMQP_URL": broker.url},
        ) as env,
    ):
        await env.put("a")
        yield Outage(env=env, broker=broker)


def completed(env: Environment) -> list[int]:
    return [m.body["execution_id"] for m in env.listener.received if m.type == EXECUTION_COMPLETED]


async def test_every_time_to_live_ends_in_time_without_a_broker(database_url: str, amqp_url: str) -> None:
    async with outage(database_url, amqp_url) as it:
        it.begin()
        # More than a tick apart, so that no tick finds two of them.
        ids = [await it.submit(ttl=0.5 * (n + 1)) for n in range(5)]
        await it.until_all(ids, "expired")
        late = await it.env.history.value(
            "SELECT max(extract(epoch FROM completed_at - expires_at)) FROM ledger.execution"
        )
        assert late < 5
        assert completed(it.env) == []
        it.end()
        for execution_id in ids:
            await it.env.completions(execution_id)
