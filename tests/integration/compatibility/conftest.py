"""Databases as earlier revisions left them."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from alembic import command

from turnstile.migrations.run import alembic_config, engine_of

UpgradeTo: TypeAlias = Callable[[str], Awaitable[str]]


@pytest.fixture
def upgrade_to(empty_database_url: str) -> UpgradeTo:
    """Bring a database of the test's own to a revision, and return its URL."""

    async def upgrade(revision: str) -> str:
        engine = engine_of(empty_database_url)
        async with engine.begin() as connection:
            await connection.run_sync(lambda c: command.upgrade(alembic_config(c), revision))
        await engine.dispose()
        return empty_database_url

    return upgrade
