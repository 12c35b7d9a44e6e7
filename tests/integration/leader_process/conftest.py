"""The ledger of a test's own, as its assertions read it."""

import pytest

from tests.integration.leader_process.support import Store


@pytest.fixture
def store(database_url: str) -> Store:
    return Store(database_url)
