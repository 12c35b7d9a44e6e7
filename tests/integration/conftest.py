"""Sessions on a database of the test's own, each with a worker that holds a lease."""

from collections.abc import AsyncIterator

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol, connected
from tests.support.served import Served, serve


@pytest.fixture
async def protocol(database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as protocol:
        await protocol.register()
        yield protocol


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    """The HTTP API without actions and workers."""
    async with serve(database_url) as served:
        yield served


@pytest.fixture
async def other(database_url: str, protocol: Protocol) -> AsyncIterator[Protocol]:
    """A second session on the same database, with a second worker."""
    await protocol.register(OTHER_WORKER)
    async with connected(database_url) as session:
        yield session


@pytest.fixture
async def old_snapshot(other: Protocol) -> AsyncIterator[None]:
    """A reader that began before everything, as a backup does."""
    transaction = other.connection.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await other.column("SELECT count(*) FROM action")
    yield
    await transaction.rollback()
