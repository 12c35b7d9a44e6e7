"""Several nodes in the URL: whoever loses one goes on with the next."""

from tests.support.brokers import declares, message, running, until
from tests.support.cable import cable_to
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers.ports import free_port

CONFIRMED = Publication.CONFIRMED


async def test_a_node_where_nobody_answers_is_passed_by(amqp_url: str) -> None:
    vhost = amqp_url.rpartition("/")[2]
    nobody = ",".join(f"amqp://127.0.0.1:{free_port()}/{vhost}" for _ in range(3))
    publisher = Publisher(f"{nobody},{amqp_url}", name="pub", declare=declares("q"))
    async with running(publisher):
        assert await publisher.publish([message("q")]) == [CONFIRMED]


async def test_after_a_loss_the_next_node_is_asked_first(amqp_url: str) -> None:
    async with cable_to(amqp_url) as one, cable_to(amqp_url) as other:
        publisher = Publisher(f"{one.url},{other.url}", name="pub", declare=declares("q"))
        async with running(publisher):
            for _ in range(4):
                used = [cable for cable in (one, other) if cable.is_used]
                assert len(used) == 1
                used[0].cut()
                await until(lambda: publisher.connected and not used[0].is_used)  # noqa: B023
                assert await publisher.publish([message("q")]) == [CONFIRMED]


async def test_the_connections_of_an_installation_spread_over_the_nodes(amqp_url: str) -> None:
    async with cable_to(amqp_url) as one, cable_to(amqp_url) as other:
        publishers = [Publisher(f"{one.url},{other.url}", name="pub") for _ in range(24)]
        async with running(*publishers):
            assert one.is_used
            assert other.is_used
