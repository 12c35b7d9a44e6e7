"""P1 to P7 while one of three brokers, the leader of every queue, is lost for ever."""

import asyncio
from collections.abc import Iterator

import aio_pika
import pytest

from tests.proof.cluster.brokers import RabbitCluster
from tests.proof.cluster.loaded import loaded
from tests.support.brokers import bodies, running, take
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_executor, declare_pool
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.envelopes import cancel_message
from turnstile.common.messages import ExecutionCancel
from turnstile.localservers.servers import ScratchFolder
from turnstile.worker.control import ControlQueue

SECONDS = 8.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    scratch = ScratchFolder.create(in_memory=True)
    try:
        with RabbitCluster.start(scratch.path) as cluster:
            yield cluster
    finally:
        scratch.delete()


async def test_a_worker_is_reached_after_the_loss_of_the_node_of_its_own_queue(
    cluster: RabbitCluster,
) -> None:
    home, *_ = cluster.nodes
    url = cluster.create_vhost("own")
    own = ControlQueue(WorkerId("w1"), "quorum")
    async with running(Publisher(home.url("own"), name="pub", declare=own.declare)):
        pass
    await asyncio.to_thread(home.kill)
    try:
        consumer = ConsumerConnection(url, name="con")
        publisher = Publisher(url, name="pub", declare=own.declare)
        queue = consumer.subscribe(own.name, prefetch=10, declare=own.declare)
        own.on_moved(lambda name: setattr(queue, "queue", name))
        async with running(publisher, consumer):
            await until(lambda: queue.ready)
            message = cancel_message(ExecutionCancel(execution_id=7, attempt=1), worker_id="w1")
            assert await publisher.publish([message]) == [Publication.CONFIRMED]
            assert bodies(await take(queue, 1)) == [message.body]
    finally:
        await asyncio.to_thread(home.restart)


async def test_a_dead_node_loses_nothing_and_no_order_though_it_led_every_queue(
    cluster: RabbitCluster, database_url: str
) -> None:
    leader, stays, _ = cluster.nodes
    url = cluster.create_vhost("turnstile")
    await _lead_all(leader.url("turnstile"))
    async with loaded(database_url, url, amqp_url_that_stays=stays.url("turnstile"), seconds=SECONDS) as load:
        await load.until_begun()
        async with load.losing("the node that led every queue"):
            await asyncio.to_thread(leader.kill)
        await asyncio.to_thread(leader.restart)


async def _lead_all(amqp_url: str) -> None:
    """Declare the queues here: the node that declares a quorum queue leads it."""
    async with asyncio.timeout(60), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await declare_executor(channel)
        await declare_pool(channel, "default")
