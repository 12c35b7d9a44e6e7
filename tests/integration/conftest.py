"""A database of the test's own: sessions with workers that hold a lease, or the tables of the ledger."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.ledger import create_ledger, ledger_on
from tests.support.protocol import OTHER_WORKER, Protocol, connected
from tests.support.served import Served, serve
from turnstile.executor.leader.ledger import Ledger
from turnstile.localservers import DatabaseServer


@pytest.fixture(scope="session")
def ledger_template(postgresql: DatabaseServer) -> Iterator[str]:
    """The name of a database with empty tables of the ledger, to be copied."""
    name = f"turnstile_test_ledger_{id(postgresql):x}"
    url = postgresql.create_database(name)
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, create_ledger(url)).result()
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def ledger_url(postgresql: DatabaseServer, ledger_template: str) -> Iterator[str]:
    """A database of the test's own with the tables of the ledger."""
    name = f"{ledger_template}_test"
    yield postgresql.create_database(name, ledger_template)
    postgresql.drop_database(name)


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    async with ledger_on(ledger_url) as ledger:
        yield ledger


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
