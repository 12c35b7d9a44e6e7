"""P2, P3 and P5 while PostgreSQL is frozen or gone: nothing is lost or run twice, and no service restarts.

Whole services and a server of its own: what must go on are processes beside a server that does not answer.
"""

import asyncio
from pathlib import Path

from tests.support.environment import running_environment
from tests.support.history import History, value_in
from tests.support.steady import steady
from tests.support.traffic import until
from turnstile.localservers import PostgresServer, RabbitServer
from turnstile.migrations.run import migrate

LEASE_SECONDS = 3.0
SHORT_LEASE = {
    "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS:g}s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
    "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
}
OUTAGE_SECONDS = LEASE_SECONDS * 1.4
"""Duration of an outage of the database: longer than a lease."""


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
