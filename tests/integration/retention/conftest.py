"""A session on a database of the test's own, and one pruner on it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.protocol import Protocol, connected


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register(lease_seconds=86_400)
        yield protocol
