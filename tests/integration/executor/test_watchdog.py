"""Sweeps dispatch what they grant, and repair times after the database's clock was set back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import aio_pika
import pytest

from tests.integration.telemetry.test_healing import watchdog_over
from tests.support.brokers import until_ready
from tests.support.protocol import Protocol
from tests.support.traffic import drain_queue, publishing, until
from turnstile.common.broker.topology import pool_queue
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.sweep_turns import SweepTurns
from turnstile.executor.watchdog import ReclaimSweeps, Watchdog

POOL_QUEUE = pool_queue("default")


@asynccontextmanager
async def watching(
    database_url: str, amqp_url: str, settings: ExecutorSettings | None = None
) -> AsyncIterator[Watchdog]:
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        queue_manager = QueueManager(database)
        dispatcher = Dispatcher(publisher, queue_manager, "quorum", publisher)
        settings = settings or ExecutorSettings()
        turns = SweepTurns(settings.watchdog_interval)
        yield Watchdog(settings, database, queue_manager, dispatcher, turns)
        await dispatcher.finish(20)
    await database.close()


async def test_grants_of_a_sweep_are_offered(protocol: Protocol, database_url: str, amqp_url: str) -> None:
    await protocol.put("a", max_concurrent=1)
    _, second = await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 2")
    async with watching(database_url, amqp_url) as watchdog:
        assert await watchdog.queues.grant_idle_slots() == 1
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == str(second)


@pytest.mark.parametrize(
    ("newcomer", "count"), [(None, 8), (4, 16), (1, 64)], ids=["alike", "smaller", "previous version"]
)
async def test_offers_share_messages_only_where_every_live_worker_of_the_pool_takes_them(
    protocol: Protocol, database_url: str, amqp_url: str, newcomer: int | None, count: int
) -> None:
    await protocol.connection.execute("UPDATE worker SET offers_per_message = 8")
    await protocol.register("elsewhere", pools=["gpu"])
    if newcomer is not None:
        # A worker of the previous version registers without the number.
        await protocol.register("newcomer")
        await protocol.connection.execute(
            "UPDATE worker SET offers_per_message = $1 WHERE id = 'newcomer' AND $1 > 1", newcomer
        )
    await protocol.put("a", max_concurrent=0)
    ids = await protocol.submit("a", 64)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    async with watching(database_url, amqp_url) as watchdog:
        await watchdog.queues.prepare_pools()
        assert await watchdog.queues.grant_idle_slots() == 64
    messages = [json.loads(each.body) for each in await drain_queue(amqp_url, POOL_QUEUE, count)]
    offered = [offer for message in messages for offer in (message, *message.get("more", ()))]
    assert [offer["execution_id"] for offer in offered] == ids
    assert {(offer["attempt"], offer["action_ref"]) for offer in offered} == {(1, "a")}


async def test_repeated_offers_are_alone_in_their_messages(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.connection.execute("UPDATE worker SET offers_per_message = 8")
    await protocol.put("a")
    ids = await protocol.submit("a", 64)
    await protocol.connection.execute("UPDATE slot SET offered_at = offered_at - interval '1 h'")
    async with watching(database_url, amqp_url) as watchdog:
        await watchdog.queues.prepare_pools()
        assert await watchdog.redelivery.repeat_offers() == 64
        # As many messages could carry all 64 offers eight times over.
        await protocol.connection.execute("UPDATE slot SET offered_at = offered_at - interval '1 h'")
        await until_ready(amqp_url, POOL_QUEUE, 64)
        assert await watchdog.redelivery.repeat_offers() == 0
    messages = [json.loads(each.body) for each in await drain_queue(amqp_url, POOL_QUEUE, 64)]
    assert [message["execution_id"] for message in messages] == ids
    assert not any("more" in message for message in messages)


async def test_an_invalid_pool_name_delays_no_other_pool(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.register("another", pools=["retry", "gpu;x", "x" * 300, "", "gpu"])
    async with watching(database_url, amqp_url) as watchdog:
        assert await watchdog.queues.prepare_pools() == 0
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        assert (await channel.get_queue(pool_queue("gpu"), ensure=True)).name == "worker.gpu"


async def test_a_worker_with_thousands_of_pools_delays_no_other_pool(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.register("another", pools=[f"junk-{number:04}" for number in range(3000)])
    await protocol.register("later", pools=["zinc"])
    async with watching(database_url, amqp_url) as watchdog:
        await watchdog.queues.prepare_pools()
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        assert (await channel.get_queue(pool_queue("zinc"), ensure=True)).name == "worker.zinc"


async def test_the_watchdog_deletes_the_queues_of_idle_keys_in_its_rounds(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.put("a", concurrency_key="/key", max_concurrent=1)
    ids = [i for n in range(25) for i in await protocol.submit("a", parameters={"key": f"key-{n}"})]
    await protocol.run(*ids[:-1])
    await protocol.settle(*((i, 1) for i in ids[:-1]))
    settings = ExecutorSettings(watchdog_interval=0.02, retention_idle_keys=0.2)
    async with watching(database_url, amqp_url, settings) as watchdog:
        rounds = asyncio.create_task(watchdog.run())
        await protocol.until("SELECT array_agg(concurrency_key) = ARRAY['key-24'] FROM action_queue")
        rounds.cancel()
        with suppress(asyncio.CancelledError):
            await rounds


async def test_the_watchdog_recounts_the_queues_in_its_rounds_again_and_again(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.submit("a")
    async with watching(database_url, amqp_url, ExecutorSettings(watchdog_interval=0.02)) as watchdog:
        rounds = asyncio.create_task(watchdog.run())
        for _ in range(2):
            await protocol.connection.execute("UPDATE queue_state SET depth = 7")
            await protocol.until("SELECT depth = 1 FROM turnstile.current_queue")
        rounds.cancel()
        with suppress(asyncio.CancelledError):
            await rounds


LATER = datetime(2100, 1, 1, tzinfo=UTC)
HOUR = "interval '1 h'"


async def set_back(protocol: Protocol, table: str, *columns: str) -> None:
    """Leave the rows of a table as a clock leaves them that is set back by an hour."""
    moved = ", ".join(f"{column} = {column} + {HOUR}" for column in columns)
    await protocol.connection.execute(f"UPDATE {table} SET {moved}")


async def to_present(protocol: Protocol, *, in_retries: bool = False) -> int:
    count: int = await protocol.connection.fetchval("SELECT turnstile.clamp_future_instants($1)", in_retries)
    return count


async def seconds_ahead(protocol: Protocol, query: str) -> list[float | None]:
    """Return how far in the future instants lie."""
    rows = await protocol.connection.fetch(
        f"SELECT extract(epoch FROM x - clock_timestamp())::float8 FROM ({query}) q(x)"
    )
    return [row[0] for row in rows]


async def test_a_dead_worker_loses_its_lease_within_one_lease(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.register("dead", lease_seconds=0.3)
    assert await protocol.claim_verdicts(one, worker="dead") == ["claimed"]
    await set_back(protocol, "worker_lease", "renewed_at", "expires_at")
    leases = watchdog_over(protocol).reclaims
    await until(lambda: _reclaimed(leases), "the lease is lost")
    assert await protocol.column("SELECT id FROM worker WHERE lost_at IS NOT NULL") == ["dead"]
    (ahead,) = await seconds_ahead(protocol, "SELECT expires_at FROM worker_lease")
    assert ahead is not None
    assert 500 < ahead <= 600


async def _reclaimed(leases: ReclaimSweeps) -> int:
    await leases.return_to_present()
    return await leases.reclaim_lost()


async def test_offers_and_completions_are_published_again_in_time(protocol: Protocol) -> None:
    await protocol.put()
    offered, ended = await protocol.submit(count=2)
    (waited,) = await protocol.submit(run_at=LATER)
    await protocol.run(ended)
    await protocol.cancel(waited)
    await set_back(protocol, "slot", "granted_at", "offered_at", "claimed_at", "finished_at", "published_at")
    await set_back(protocol, "unpublished_completion", "published_at")
    assert await protocol.due_pools() == {}
    assert await protocol.due_completions() == []
    assert await to_present(protocol) == 3
    assert await protocol.missing_offers({"default": 0}) == [offered]
    assert await protocol.due_completions() == [ended, waited]
    assert await to_present(protocol) == 0


async def test_an_offer_that_is_withheld_stays_so(protocol: Protocol) -> None:
    await protocol.put()
    await protocol.submit()
    await protocol.connection.execute("UPDATE slot SET offered_at = NULL")
    await set_back(protocol, "slot", "granted_at")
    assert await to_present(protocol) == 1
    assert await protocol.column("SELECT offered_at FROM slot") == [None]


async def test_the_cancel_to_a_lost_worker_is_published_in_time(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.lose_lease()
    await protocol.reclaim()
    await set_back(protocol, "unpublished_cancel", "recorded_at")
    assert await protocol.due_cancels() == []
    assert await to_present(protocol) >= 1
    assert [i for i, *_ in await protocol.due_cancels()] == [one]


async def test_a_timeout_counts_from_now_at_the_latest_and_requested_stops_are_due(
    protocol: Protocol,
) -> None:
    await protocol.put(timeout=60)
    timed, cancelled, notified = await protocol.submit(count=3)
    await protocol.claim(timed, cancelled, notified)
    await protocol.cancel(cancelled)
    await protocol.connection.execute("UPDATE slot SET cancels_sent = 1 WHERE execution_id = $1", notified)
    await set_back(protocol, "slot", "granted_at", "offered_at", "claimed_at", "overdue_at")
    await to_present(protocol)
    ahead = await seconds_ahead(protocol, "SELECT overdue_at FROM slot ORDER BY execution_id")
    assert ahead[0] is not None
    assert 0 < ahead[0] <= 60
    assert all(each is not None and each <= 0 for each in ahead[1:])


async def test_a_wait_before_a_retry_is_as_long_as_it_was_and_given_times_stay(
    protocol: Protocol,
) -> None:
    await protocol.put()
    (retried,) = await protocol.submit(ttl=100_000)
    (delayed,) = await protocol.submit(run_at=LATER)
    await protocol.claim(retried)
    await protocol.finish(retried, status=Status.FAILED, retry_delay_seconds=60)
    await set_back(protocol, "attempt", "ended_at")
    await set_back(protocol, "delayed", "due_at")
    await protocol.connection.execute(
        "UPDATE execution e SET run_at = d.due_at FROM delayed d WHERE d.execution_id = e.id"
    )
    query = "SELECT expires_at FROM execution WHERE id = $1"
    expires_at = await protocol.connection.fetchval(query, retried)
    given = await protocol.connection.fetchval("SELECT due_at FROM delayed WHERE execution_id = $1", delayed)
    assert await to_present(protocol, in_retries=True) >= 1
    for place in ("SELECT due_at FROM delayed WHERE execution_id", "SELECT run_at FROM execution WHERE id"):
        (ahead,) = await seconds_ahead(protocol, f"{place} = {retried}")
        assert ahead is not None
        assert 0 < ahead <= 60
        assert await protocol.connection.fetchval(f"{place} = {delayed}") == given
    assert await protocol.connection.fetchval(query, retried) == expires_at


async def test_times_of_a_steady_clock_are_unchanged(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    one, two = await protocol.submit(count=2)
    await protocol.run(one)
    await protocol.claim(two)
    (three,) = await protocol.submit(run_at=LATER)
    await protocol.cancel(three)
    assert await to_present(protocol, in_retries=True) == 0


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_times_are_repaired_after_a_jump_and_at_the_start(
    protocol: Protocol, caplog: pytest.LogCaptureFixture, is_noticed: bool
) -> None:
    await protocol.put()
    await protocol.submit()
    leases = watchdog_over(protocol).reclaims
    assert await leases.return_to_present() == 0
    await set_back(protocol, "slot", "granted_at", "offered_at")
    if is_noticed:
        leases._returning_until = 0
        assert await leases.return_to_present() == 0
        leases._note_jump(-3600.0)
        assert "database_clock_jumped" in [record.getMessage() for record in caplog.records]
    assert await leases.return_to_present() == 1
