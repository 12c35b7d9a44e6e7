"""A second executor on the ledger of a test that runs whole leaders."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger import ledger_on
from turnstile.executor.leader.ledger import Ledger


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Ledger]:
    """The ledger of another executor."""
    async with ledger_on(database_url) as ledger:
        yield ledger
