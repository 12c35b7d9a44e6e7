"""A database of the test's own: the tables of the ledger, and the API over them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.ledger import create_ledger, ledger_on
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
async def api(database_url: str) -> AsyncIterator[Served]:
    """The HTTP API without actions and workers."""
    async with serve(database_url) as served:
        yield served
