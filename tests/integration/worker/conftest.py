"""A scripted leader in a vhost of the test's own, and an empty database."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.scripted_leader import ScriptedLeader
from turnstile.localservers import DatabaseServer


@pytest.fixture
async def leader(amqp_url: str) -> AsyncIterator[ScriptedLeader]:
    async with ScriptedLeader(amqp_url).leading() as leader:
        yield leader


@pytest.fixture
def empty_url(postgresql: DatabaseServer) -> Iterator[str]:
    """A database without tables."""
    name = f"turnstile_test_empty_{secrets.token_hex(4)}"
    yield postgresql.create_database(name)
    postgresql.drop_database(name)
