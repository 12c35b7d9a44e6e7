"""P2, P3 and P5 while PostgreSQL or RabbitMQ fails: nothing is lost or run twice, and no service restarts."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment import Environment, running_environment
from tests.support.history import History, value_in
from tests.support.steady import SteadyClient, steady
from tests.support.traffic import until
from turnstile.localservers import LocalServers, PostgresServer, RabbitServer
from turnstile.migrations.run import migrate

LEASE_SECONDS = 3.0
SHORT_LEASE = {
    "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS:g}s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
    "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
}
USUAL_LEASE = {"TURNSTILE_LEASE_DURATION": "30s", "TURNSTILE_HEARTBEAT_INTERVAL": "3s"}
"""What an installation has: longer than it takes to notice that a broker is frozen."""
OUTAGE_SECONDS = LEASE_SECONDS * 1.4
"""Duration of an outage of the database: longer than a lease."""
FROZEN_SECONDS = 11.0
"""Long enough for the services to give up every connection to a silent broker."""


@pytest.fixture(scope="module")
def own() -> Iterator[LocalServers]:
    """Servers that keep what is committed when they crash."""
    with LocalServers.start(durable=True) as servers:
        yield servers


@pytest.fixture
async def urls(own: LocalServers, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A migrated database and a vhost of the test's own."""
    name = f"{request.node.name[:40]}_{secrets.token_hex(4)}"
    database_url = own.postgresql.create_database(name)
    await migrate(database_url)
    return database_url, own.rabbitmq.create_vhost(name)


@pytest.mark.whole
async def test_a_database_that_restarts_crashes_and_ends_sessions_costs_nothing_but_time(
    own: LocalServers, urls: tuple[str, str], tmp_path: Path
) -> None:
    database_url, amqp_url = urls
    async with running_environment(database_url, amqp_url, executors=2, workers=2) as env:
        async with steady(amqp_url, tmp_path) as client:
            await client.continues("the start")
            await asyncio.to_thread(own.postgresql.restart, "fast")
            await client.continues("a restart")
            await asyncio.to_thread(own.postgresql.restart, "immediate")
            await client.continues("a crash")
            for _ in range(10):
                await _end_all_sessions(database_url)
                await client.until_confirmed(6)
            await client.continues("many ended sessions")
        await client.all_ran_once_in_order(env.history)
        await _no_worker_was_lost(env.history)


async def test_a_database_frozen_or_gone_for_longer_than_a_lease_ends_no_work_and_acknowledges_nothing(
    own_postgresql: PostgresServer, controlled_broker: RabbitServer, controlled_amqp_url: str, tmp_path: Path
) -> None:
    database_url, amqp_url = own_postgresql.create_database("frozen"), controlled_amqp_url
    await migrate(database_url)
    async with running_environment(database_url, amqp_url, workers=2, settings=SHORT_LEASE) as env:
        held = await env.submit("hold")
        await env.until_status(held, "running")
        async with steady(amqp_url, tmp_path) as client:
            await client.continues("the start")
            async with client.paused() as before:
                await until(lambda: _recorded(database_url, before), "all requests are admitted")
                await asyncio.to_thread(own_postgresql.pause)
            await asyncio.sleep(OUTAGE_SECONDS)
            async with client.paused() as after:
                await _all_are_queued(controlled_broker, _vhost(amqp_url), after - before)
            await asyncio.to_thread(own_postgresql.resume)
            await client.continues("a freeze")
            await asyncio.to_thread(own_postgresql.stop)
            await asyncio.sleep(OUTAGE_SECONDS)
            await asyncio.to_thread(own_postgresql.restart)
            await client.continues("an absence")
        await client.all_ran_once_in_order(env.history)
        await env.stop_running()
        assert await env.attempts(held) == [(1, "cancelled")]
        await _no_worker_was_lost(env.history)


@pytest.mark.whole
@pytest.mark.timeout(240)
async def test_a_broker_that_cuts_blocks_freezes_crashes_and_restarts_costs_nothing_but_time(
    own: LocalServers, urls: tuple[str, str], tmp_path: Path
) -> None:
    database_url, amqp_url = urls
    broker, vhost = own.rabbitmq, _vhost(amqp_url)
    async with running_environment(
        database_url, amqp_url, executors=2, workers=2, settings=USUAL_LEASE
    ) as env:
        held = await env.submit("hold")
        await env.until_status(held, "running")
        async with steady(amqp_url, tmp_path) as client:
            await client.continues("the start")
            for _ in range(8):
                await asyncio.to_thread(
                    broker.ctl, "close_all_connections", "--vhost", vhost, "--quiet", "tested"
                )
                await asyncio.sleep(1)
            await client.continues("many closed connections")
            await _blocked_and_released(broker, client, env)
            await client.continues("an alarm")
            await asyncio.to_thread(broker.pause)
            await asyncio.sleep(FROZEN_SECONDS)
            await asyncio.to_thread(broker.resume)
            await client.continues("a freeze")
            await until(lambda: _knows_its_quorum_queues(broker, vhost), "the broker knows its queues")
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await client.continues("a crash")
            await asyncio.to_thread(broker.restart)
            await client.continues("a restart")
        await client.all_ran_once_in_order(env.history)
        await env.stop_running()
        assert await env.attempts(held) == [(1, "cancelled")]
        await _no_worker_was_lost(env.history)


async def _no_worker_was_lost(history: History) -> None:
    # What waited in a run may have been returned.
    assert await history.value("SELECT count(*) FROM ledger.attempt WHERE outcome <> 'returned'") == 0
    assert await history.value("SELECT count(*) FROM ledger.worker WHERE gone_at IS NULL") == 2
    assert await history.value("SELECT count(*) FROM ledger.worker") == 2


async def _recorded(database_url: str, requests: int) -> bool:
    query = "SELECT count(*) FROM ledger.execution e WHERE e.action_ref LIKE 'record%'"
    return bool(await value_in(database_url, query) == requests)


def _vhost(amqp_url: str) -> str:
    return amqp_url.rpartition("/")[2]


async def _all_are_queued(broker: RabbitServer, vhost: str, requests: int) -> None:
    """Wait until the broker, which counts every few seconds, reports this number of requests."""
    columns = ("name", "messages")

    async def stored() -> bool:
        listed = await asyncio.to_thread(broker.ctl, "list_queues", "--silent", "-p", vhost, *columns)
        counts = dict(line.split("\t") for line in listed.splitlines())
        return int(counts["executor.requests"]) == requests

    assert requests > 0
    await until(stored, f"{requests} requests in the queue", deadline_seconds=20)


async def _blocked_and_released(broker: RabbitServer, client: SteadyClient, env: Environment) -> None:
    await asyncio.to_thread(broker.ctl, "set_vm_memory_high_watermark", "0.000001")

    async def blocked() -> bool:
        return client.publisher.blocked

    async def shown() -> bool:
        answer = await env.executor.readiness()
        return answer.get("status") == "ready" and "alarm" in answer.get("degraded", {}).get("broker", "")

    await until(blocked, "the broker takes no more")
    # The broker tells a connection of the alarm when that publishes.
    await env.submit("noop")
    await until(shown, "/readyz names the alarm")
    await asyncio.sleep(LEASE_SECONDS)
    await asyncio.to_thread(broker.ctl, "set_vm_memory_high_watermark", "0.4")


async def _knows_its_quorum_queues(broker: RabbitServer, vhost: str) -> bool:
    """Whether the broker has saved the list of its quorum queues: before that a kill costs them."""
    saved = b"".join(names.read_bytes() for names in broker.folder.glob("data/*/quorum/*/names.dets"))
    queues = ("executor.requests", "executor.completions", "executor.heartbeats")
    return all(f"{vhost}_{queue}".encode() in saved for queue in queues)


async def _end_all_sessions(database_url: str) -> None:
    await value_in(
        database_url,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
