"""What was granted is offered, whatever becomes of the next grant."""

from common.broker.topology import pool_queue
from common.database import Database
from common.domain.identifiers import Attempt, ExecutionId, QueueId
from executor.decisions import Grant, Grants
from executor.hand_over import HandOver
from executor.queue_manager import QueueManager
from tests.e2e.traffic import drain_queue, publishing


async def test_an_offer_is_made_though_the_database_leaves_before_the_next_grant(amqp_url: str) -> None:
    never_opened = Database("postgresql://nobody@127.0.0.1:1/none", application_name="test")
    grant = Grant(execution_id=ExecutionId(7), attempt=Attempt(1), action_ref="a", pool="default")
    async with publishing(amqp_url) as publisher:
        hand_over = HandOver(publisher, QueueManager(never_opened), "quorum")
        await hand_over.offer(Grants(granted=[grant], more_queue_ids=[QueueId(1)]))
    (offered,) = await drain_queue(amqp_url, pool_queue("default"), 1)
    assert offered.correlation_id == "7"
