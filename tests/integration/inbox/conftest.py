"""An installation of a leader and the inboxes of HTTP processes, on a database of the test's own."""

from collections.abc import AsyncIterator

import pytest

from tests.support.inbox import Installation


@pytest.fixture
async def installation(database_url: str) -> AsyncIterator[Installation]:
    """Without a leader until one is started."""
    async with Installation(database_url) as installation:
        yield installation
