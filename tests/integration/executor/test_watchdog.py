"""A sweep hands over whatever its statement granted, and survives what it cannot do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aio_pika

from tests.support.protocol import Protocol
from tests.support.traffic import drain_queue, publishing, until
from turnstile.common.broker.topology import pool_queue
from turnstile.common.database import Database
from turnstile.executor.hand_over import HandOver
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.watchdog import Watchdog


@asynccontextmanager
async def watching(
    database_url: str, amqp_url: str, settings: ExecutorSettings | None = None
) -> AsyncIterator[Watchdog]:
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        queue_manager = QueueManager(database)
        hand_over = HandOver(publisher, queue_manager, "quorum", publisher)
        yield Watchdog(settings or ExecutorSettings(), database, queue_manager, hand_over)
        await hand_over.finish_telling(20)
    await database.close()


async def test_what_a_sweep_grants_is_offered(protocol: Protocol, database_url: str, amqp_url: str) -> None:
    await protocol.put("a", max_concurrent=1)
    _, second = await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 2")
    async with watching(database_url, amqp_url) as watchdog:
        assert await watchdog.lines.grant_idle_slots() == 1
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == str(second)


async def test_a_pool_that_nobody_can_have_keeps_no_other_from_its_queue(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.register("another", pools=["retry", "gpu;x", "x" * 300, "", "gpu"])
    async with watching(database_url, amqp_url) as watchdog:
        assert await watchdog.pools.prepare_pools() == 0
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        assert (await channel.get_queue(pool_queue("gpu"), ensure=True)).name == "worker.gpu"


async def test_no_worker_crowds_out_the_pools_of_the_others(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.register("another", pools=[f"junk-{number:04}" for number in range(3000)])
    await protocol.register("later", pools=["zinc"])
    async with watching(database_url, amqp_url) as watchdog:
        await watchdog.pools.prepare_pools()
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

        async def only_what_is_in_use_is_left() -> bool:
            return await protocol.column("SELECT concurrency_key FROM action_queue") == ["key-24"]

        await until(only_what_is_in_use_is_left, "the queues of idle keys are gone")
        rounds.cancel()
        with suppress(asyncio.CancelledError):
            await rounds
