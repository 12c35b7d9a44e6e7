"""P7 and P9 without a server: services start and wait, cancels and timers act in time, all is published
later.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.environment import (
    Environment,
    StartEnvironment,
    running_environment,
)
from tests.support.proxy import CLEAR, LinkState, Proxy
from turnstile.common.broker.topology import EXECUTION_COMPLETED

SETTINGS = {
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_LEASE_DURATION": "2s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
}


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
