"""A receiver of webhooks on loopback, and a migrated database."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.webhooks.receiver import Receiver, receiving
from turnstile.common.database import Database


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, application_name="test", connections_max=4)
    await database.open()
    yield database
    await database.close()
