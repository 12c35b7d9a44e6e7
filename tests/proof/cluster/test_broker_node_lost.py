"""P1 to P7 while one of three brokers, which led every queue and had every session, is lost for ever."""

import asyncio
from collections.abc import Iterator

import aio_pika
import pytest

from tests.proof.cluster.brokers import RabbitCluster
from tests.proof.cluster.loaded import loaded
from turnstile.common.broker.topology import declare_executor
from turnstile.localservers.servers import ScratchFolder

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
