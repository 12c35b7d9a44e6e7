"""A sweep hands over whatever its statement granted."""

from common.broker.topology import pool_queue
from common.database import Database
from common.domain.states import Status
from executor.hand_over import HandOver
from executor.queue_manager import QueueManager
from executor.watchdog import Watchdog
from tests.e2e.traffic import drain_queue, publishing
from tests.integration.protocol import Protocol


async def test_what_is_granted_while_nothing_wakes_is_offered_too(
    protocol: Protocol, database_url: str, amqp_url: str
) -> None:
    await protocol.put("a", max_concurrent=1)
    first, second = await protocol.submit("a", 2)
    await protocol.claim(first)
    # Due at once, but its last slot is not settled: it cannot wake. The slot added by hand is free.
    await protocol.finish(first, status=Status.FAILED, retry_delay_seconds=0.0)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 2")
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        queue_manager = QueueManager(database)
        watchdog = Watchdog(
            database,
            queue_manager,
            HandOver(publisher, queue_manager, "quorum"),
            interval_seconds=1,
            dispatch_timeout_seconds=30,
            settle_timeout_seconds=10,
            lease_seconds=15,
            event_result_max_bytes=1000,
        )
        assert await watchdog.wake_due() == 0
    await database.close()
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == str(second)
