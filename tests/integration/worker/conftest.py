"""A scripted leader in a vhost of the test's own."""

from collections.abc import AsyncIterator

import pytest

from turnstile.testing.worker_check.leader import ScriptedLeader


@pytest.fixture
async def leader(amqp_url: str) -> AsyncIterator[ScriptedLeader]:
    async with ScriptedLeader(amqp_url).leading() as leader:
        yield leader
