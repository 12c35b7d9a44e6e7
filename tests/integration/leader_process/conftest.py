"""A database with the tables of the ledger, per test."""

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.leader_process.support import Store
from tests.support.ledger import create_ledger
from turnstile.localservers import DatabaseServer


@pytest.fixture(scope="session")
def ledger_template(postgresql: DatabaseServer) -> Iterator[str]:
    """The name of a database with empty tables of the ledger, to be copied."""
    name = f"turnstile_test_led_{secrets.token_hex(4)}"
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
def store(ledger_url: str) -> Store:
    return Store(ledger_url)
