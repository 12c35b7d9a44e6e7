"""A ledger with the tables of the history, per test."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.leader.conftest import led, ledger, ledger_template, ledger_url
from tests.support.ledger import session_on
from turnstile.common.database import Database
from turnstile.executor.history.executions import Executions
from turnstile.executor.history.sql import tables_text
from turnstile.executor.queries.read_limiter import ReadLimiter

__all__ = ["led", "ledger", "ledger_template", "ledger_url"]


@pytest.fixture
async def database(ledger_url: str) -> AsyncIterator[Database]:
    async with session_on(ledger_url) as session:
        await session.execute(tables_text())
    database = Database(ledger_url, application_name="test", connections_max=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def executions(database: Database) -> Executions:
    return Executions(database, ReadLimiter())
