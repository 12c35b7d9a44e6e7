"""A database of the test's own: the tables of the ledger, and the API over them."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger import ledger_on
from tests.support.served import Served, serve
from turnstile.executor.leader.ledger import Ledger


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with ledger_on(database_url) as ledger:
        yield ledger


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    """The HTTP API without actions and workers."""
    async with serve(database_url) as served:
        yield served
