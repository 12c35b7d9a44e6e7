"""Ended executions are deleted by age and number, as their action says, and nothing else is."""

from typing import Any

import pytest

from tests.support.ledger import Led, admitted, ended, session_on
from turnstile.common.database import Database
from turnstile.executor.history.executions import Executions
from turnstile.executor.history.filters import ExecutionFilter
from turnstile.executor.history.retention import ExecutionPruner
from turnstile.executor.leader.records import DefinitionRow

DAY = 86_400.0


async def kept(executions: Executions) -> list[int]:
    page = await executions.listed(ExecutionFilter(), before_id=10_000, limit=1000)
    return sorted(each["id"] for each in page.items)


def pruner(database: Database, **given: Any) -> ExecutionPruner:
    settings: dict[str, Any] = {"keep_seconds": None, "keep_count": None, "late_copy_seconds": 0.0} | given
    return ExecutionPruner(database, **settings)


@pytest.fixture
async def now(database: Database) -> float:
    return float(await database.fetchval("SELECT extract(epoch FROM now())"))


async def end(led: Led, ages: dict[int, float], now: float, **fields: Any) -> None:
    """Write executions that ended so many seconds ago."""
    await led.write(
        admitted=[admitted(each, created_at=now - age - 1, **fields) for each, age in ages.items()],
        ended=[ended(each, completed_at=now - age) for each, age in ages.items()],
        reserved_id=10_000,
    )


async def test_what_is_older_than_the_age_is_deleted(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await end(led, {1: 3 * DAY, 2: 2 * DAY, 3: 60.0}, now)
    assert await pruner(database, keep_seconds=DAY).prune() == 2
    assert await kept(executions) == [3]


async def test_what_has_not_ended_is_kept(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await led.write(admitted=[admitted(1, created_at=now - 9 * DAY)], reserved_id=10_000)
    await end(led, {2: 3 * DAY}, now)
    assert await pruner(database, keep_seconds=DAY, keep_count=0).prune() == 1
    assert await kept(executions) == [1]


async def test_the_newest_of_an_action_are_kept(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await end(led, {number: 1000.0 - number for number in range(1, 21)}, now)
    await end(led, {number: 1000.0 - number for number in range(21, 24)}, now, action_ref="b")
    assert await pruner(database, keep_count=5).prune() == 15
    assert await kept(executions) == [*range(16, 24)]


async def test_what_ended_just_now_is_kept_for_late_copies(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await end(led, {1: 700.0, 2: 500.0}, now)
    assert await pruner(database, keep_count=0, late_copy_seconds=600.0).prune() == 1
    assert await kept(executions) == [2]


async def test_an_action_keeps_its_own_for_longer_or_shorter(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    bodies: dict[str, dict[str, float]] = {
        "a": {"keep_for": 5 * DAY},
        "b": {"keep_for": 60.0},
        "d": {"keep_count": 1},
    }
    await led.write(
        definitions=[
            DefinitionRow(kind="action", name=ref, body={"ref": ref, **body}) for ref, body in bodies.items()
        ]
    )
    await end(led, {1: 3 * DAY}, now, action_ref="a")
    await end(led, {2: 3600.0}, now, action_ref="b")
    await end(led, {3: 3 * DAY, 4: 3600.0}, now, action_ref="c")
    await end(led, {5: 3600.0, 6: 3600.0}, now, action_ref="d")
    assert await pruner(database, keep_seconds=DAY, keep_count=10).prune() == 3
    assert await kept(executions) == [1, 4, 6]


async def test_a_locked_execution_is_skipped(
    led: Led, database: Database, executions: Executions, now: float, database_url: str
) -> None:
    await end(led, {1: 3 * DAY, 2: 3 * DAY}, now)
    async with session_on(database_url) as session, session.transaction():
        await session.execute("SELECT FROM ledger.execution WHERE id = 1 FOR UPDATE")
        assert await pruner(database, keep_seconds=DAY).prune() == 1
    assert await kept(executions) == [1]


async def test_what_has_a_webhook_that_was_not_delivered_is_kept(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await end(led, {1: 3 * DAY, 2: 3 * DAY, 3: 3 * DAY, 4: 3 * DAY}, now)
    await database.fetch(
        "INSERT INTO ledger.webhook (execution_id, url, origin, state, due_at, created_at, ended_at)"
        " VALUES (1, 'u', 'o', 'pending', now(), now(), NULL), (2, 'u', 'o', 'failed', now(), now(), now()),"
        " (3, 'u', 'o', 'delivered', now(), now(), now())"
    )
    assert await pruner(database, keep_seconds=DAY).prune() == 2
    assert await kept(executions) == [1, 2]
    assert await database.fetchval("SELECT count(*) FROM ledger.webhook") == 2


async def test_many_are_deleted_in_batches_with_what_belongs_to_them(
    led: Led, database: Database, executions: Executions, now: float
) -> None:
    await end(led, {number: 3 * DAY - number for number in range(1, 1_301)}, now)
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO ledger.log SELECT n, 1, 0, now(), 'text' FROM generate_series(1, 1300) n;"
            "INSERT INTO ledger.progress SELECT n, 1, 1, 1, NULL, now() FROM generate_series(1, 1300) n"
        )
    assert await pruner(database, keep_seconds=DAY, keep_count=None).prune() == 1300
    assert await kept(executions) == []
    for table in ("log", "progress", "attempt"):
        assert await database.fetchval(f"SELECT count(*) FROM ledger.{table}") == 0


async def test_one_executor_prunes_at_a_time(
    led: Led, database: Database, now: float, database_url: str
) -> None:
    await end(led, {1: 3 * DAY}, now)
    async with session_on(database_url) as session, session.transaction():
        await session.execute("SELECT pg_advisory_xact_lock(1953853038, 5)")
        assert await pruner(database, keep_seconds=DAY).prune() == 0
    assert await pruner(database, keep_seconds=DAY).prune() == 1
