"""A receiver of webhooks on loopback, and sessions on a database of the test's own."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.webhooks.receiver import Receiver, receiving
from tests.support.protocol import Protocol, connected


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register()
        yield protocol
