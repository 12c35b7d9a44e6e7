"""The statements on a database of the test's own, as the tests of the statements have them."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.protocol import Protocol, connected


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register()
        yield protocol
