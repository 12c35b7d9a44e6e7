"""The ledger of a test's own, as its assertions read it."""

import pytest

from tests.integration.leader_process.support import Store


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url)
