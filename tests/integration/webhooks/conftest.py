"""A receiver of webhooks on loopback."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.webhooks.receiver import Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver
