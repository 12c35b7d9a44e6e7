"""A sweep hands over whatever its statement granted, and survives what it cannot do."""

from common.broker.topology import pool_queue
from common.database import Database
from executor.hand_over import HandOver
from executor.queue_manager import QueueManager
from executor.settings import ExecutorSettings
from executor.watchdog import Watchdog
from tests.e2e.traffic import drain_queue, publishing
from tests.integration.protocol import Protocol


async def test_what_a_sweep_grants_is_offered(protocol: Protocol, database_url: str, amqp_url: str) -> None:
    await protocol.put("a", max_concurrent=1)
    _, second = await protocol.submit("a", 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 2")
    database = Database(database_url, application_name="test")
    await database.open()
    async with publishing(amqp_url) as publisher:
        queue_manager = QueueManager(database)
        watchdog = Watchdog(
            ExecutorSettings(), database, queue_manager, HandOver(publisher, queue_manager, "quorum")
        )
        assert await watchdog.lines.grant_idle_slots() == 1
    await database.close()
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == str(second)
