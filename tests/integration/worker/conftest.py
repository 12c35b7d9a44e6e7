"""A scripted leader in a vhost of the test's own."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.sources import Servers
from turnstile.testing.worker_check.leader import ScriptedLeader


@pytest.fixture
async def leader(amqp_url: str) -> AsyncIterator[ScriptedLeader]:
    async with ScriptedLeader(amqp_url).leading() as leader:
        yield leader


@pytest.fixture
def vhosts(servers: Servers, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Vhosts for cases that run together."""
    names = [f"{request.node.name}-{each}" for each in range(6)]
    yield [servers.rabbitmq.create_vhost(name) for name in names]
    for name in names:
        servers.rabbitmq.delete_vhost(name)
