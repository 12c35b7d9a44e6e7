"""A page of a list reads a bounded part of the tables, whatever the history has."""

from typing import Final

import pytest

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.ledger import Led, session_on, waiting
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.executor.history import selects
from turnstile.executor.history.filters import ExecutionFilter
from turnstile.executor.sql import statements

_HISTORY = """
INSERT INTO ledger.execution (
    id, created_at, queued_at, completed_at, request_hash, status, priority, action_ref, key, parameters,
    error_type, error_message
)
SELECT 1000 + n, now(), now(), now(), gen_random_uuid(), 'failed', 3, 'a', '', '{}', 'E', 'm'
FROM generate_series(1, $1::integer) n
"""


@pytest.fixture
async def long_history(database: Database, led: Led, database_url: str) -> str:
    """The URL of a database with 30,000 executions that have ended, and two that wait."""
    await led.admit(1, 2)
    await database.fetch(_HISTORY, 30_000)
    # What lives longer than about a second has a row of its own.
    await led.write(waiting=[waiting(1), waiting(2)], low_id=40_000, reserved_id=50_000)
    async with session_on(database_url) as session:
        await session.execute("VACUUM ANALYZE")
    return database_url


async def cost(url: str, statement: selects.Statement, *, is_list: bool = True) -> Cost:
    async with session_on(url) as session, session.transaction():
        await session.execute(
            "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off;"
            "SET LOCAL jit = off"
        )
        if is_list:
            await session.execute(statements("history/history.sql")["by_key"])
        return await cost_of(session, session.fetch(*statement))


_FILTERS: Final = (
    ExecutionFilter(),
    ExecutionFilter(action_ref="a"),
    ExecutionFilter(statuses=(Status.RUNNING,)),
    ExecutionFilter(statuses=(Status.QUEUED, Status.RUNNING)),
)


async def test_the_cost_of_a_page_or_a_bulk_cancel_does_not_depend_on_the_history(long_history: str) -> None:
    of_page = {"before_id": 2**40, "limit": 20}
    found = [await cost(long_history, selects.listed_executions(each, **of_page)) for each in _FILTERS]
    unfinished = selects.unfinished_executions(ExecutionFilter(action_ref="a"), **of_page)
    found.append(await cost(long_history, unfinished, is_list=False))
    for each in found:
        assert each.pages < 300, each
        assert not each.full_scans.get("execution"), each


async def test_a_search_for_an_error_reads_its_candidates_and_not_the_history(
    long_history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selects, "CANDIDATES_MAX", 100)
    wanted = ExecutionFilter(error="no such text")
    found = await cost(long_history, selects.listed_executions(wanted, before_id=2**62, limit=50))
    assert not found.full_scans.get("execution"), found
    assert found.by_relation["execution"] <= 5 * 100
