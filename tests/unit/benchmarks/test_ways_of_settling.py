"""What the benchmarks compare does the same work: otherwise their ratios would mean nothing."""

import asyncpg

from benchmarks.client import looking
from benchmarks.line import Lines, Settle, by_function
from benchmarks.plain_statements import by_statements
from benchmarks.slot_numbers import remove_numbers

LIVE = """
SELECT (SELECT array_agg((s.execution_id, s.slot_number, s.attempt) ORDER BY s.execution_id) FROM slot s),
       (SELECT array_agg((q.id, q.depth, q.head_id, q.total_completed) ORDER BY q.id) FROM action_queue q),
       (SELECT array_agg((w.queue_id, w.execution_id) ORDER BY w.queue_id, w.execution_id) FROM waiting w)
"""


class _TryOnly(Exception):
    """Ends the transaction of a trial, so that the next one starts from the same rows."""


async def _left_by(session: "asyncpg.Connection[asyncpg.Record]", settle: Settle) -> tuple[object, object]:
    held = await session.fetch("SELECT execution_id, attempt FROM slot ORDER BY execution_id LIMIT 5")
    granted: object = None
    live: object = None
    try:
        async with session.transaction():
            granted = await settle([row["execution_id"] for row in held], [row["attempt"] for row in held])
            live = await session.fetchrow(LIVE)
            raise _TryOnly
    except _TryOnly:
        return granted, live


async def test_plain_statements_settle_and_grant_as_the_function_does(database_url: str) -> None:
    async with looking(database_url) as session:
        await Lines.create(session, name="same", queues=3, limit=2, depth=10)
        by_call = await _left_by(session, by_function(session))
        assert by_call[0]
        assert await _left_by(session, await by_statements(session)) == by_call


async def test_without_numbers_the_same_executions_are_granted(database_url: str) -> None:
    async with looking(database_url) as session:
        await Lines.create(session, name="same", queues=3, limit=2, depth=10)
        granted, _ = await _left_by(session, by_function(session))
        await remove_numbers(session)
    # The first session remembers types that are gone.
    async with looking(database_url) as session:
        assert (await _left_by(session, by_function(session)))[0] == granted
        assert not await session.fetchval("SELECT to_regclass('uq_slot_number') IS NOT NULL")


async def test_every_turn_leaves_the_lines_as_deep_as_they_were(database_url: str) -> None:
    async with looking(database_url) as session:
        lines = await Lines.create(session, name="turns", queues=2, limit=2, depth=10)
        for _ in range(12):
            assert await lines.turn(by_function(session), 2) > 0
        assert await session.fetchval("SELECT array_agg(depth) FROM action_queue") == [10, 10]
        assert await session.fetchval("SELECT count(*) FROM slot") == 4
