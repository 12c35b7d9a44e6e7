"""Two executors on one ledger, per test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger import Led, ledger_on
from turnstile.executor.leader.ledger import Ledger


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger of another executor."""
    async with ledger_on(database_url) as ledger:
        yield ledger


@pytest.fixture
async def led(ledger: Ledger) -> Led:
    """A ledger that leads as executor `a`."""
    return await Led.by(ledger)
