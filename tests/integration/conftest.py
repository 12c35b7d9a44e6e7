"""A database of the test's own: the tables of the ledger, a leader's ledger, and the API over them."""

from collections.abc import AsyncIterator

import pytest

from tests.support.inbox import Installation
from tests.support.ledger import Led, ledger_on
from tests.support.served import Served, serve
from turnstile.common.database import Database
from turnstile.executor.leader.ledger import Ledger


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The connections of an executor."""
    database = Database(database_url, application_name="test", connections_max=4)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with ledger_on(database_url) as ledger:
        yield ledger


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger of another executor."""
    async with ledger_on(database_url) as ledger:
        yield ledger


@pytest.fixture
async def led(ledger: Ledger) -> Led:
    """A ledger that leads as executor `a`."""
    return await Led.by(ledger)


@pytest.fixture
async def installation(database_url: str) -> AsyncIterator[Installation]:
    """A leader and the inboxes of HTTP processes, without a leader until one is started."""
    async with Installation(database_url) as installation:
        yield installation


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    """The HTTP API without actions and workers."""
    async with serve(database_url) as served:
        yield served
