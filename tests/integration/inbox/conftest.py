"""An installation of a leader and the inboxes of HTTP processes, on a database of the test's own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.inbox import Installation
from tests.support.ledger import create_ledger
from turnstile.localservers import DatabaseServer


@pytest.fixture(scope="session")
def inbox_template(postgresql: DatabaseServer) -> Iterator[str]:
    """The name of a database with empty tables of the ledger, to be copied."""
    name = f"turnstile_test_inbox_{id(postgresql):x}"
    url = postgresql.create_database(name)
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, create_ledger(url)).result()
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def ledger_url(postgresql: DatabaseServer, inbox_template: str) -> Iterator[str]:
    """A database of the test's own with the tables of the ledger."""
    name = f"{inbox_template}_test"
    yield postgresql.create_database(name, inbox_template)
    postgresql.drop_database(name)


@pytest.fixture
async def installation(ledger_url: str) -> AsyncIterator[Installation]:
    """Without a leader until one is started."""
    async with Installation(ledger_url) as installation:
        yield installation
