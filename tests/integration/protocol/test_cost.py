"""The cost of a statement depends on the rows that it changes, not on depth, history or number of queues.

A session may plan its statements while the tables are empty, and keep these plans.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.protocol import COUNT_QUEUES, Protocol, connected, ids_in, request
from turnstile.localservers import DatabaseServer

WAITING = 100_000
DEAD = 60_000
KEYS = 10_000
PAGES_PER_STATEMENT, PAGES_PER_ROW = 100, 60

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deep:
    """A database with 100,000 waiting in one queue and 10,000 other queues, and three sessions."""

    planned_empty: Protocol
    planned_full: Protocol
    other: Protocol
    queue_id: int
    heads: list[int]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deep(postgresql: DatabaseServer, template_database: str) -> AsyncIterator[Deep]:
    name = f"{template_database}_deep"
    async with AsyncExitStack() as stack:
        url = postgresql.create_database(name, template_database)
        stack.callback(postgresql.drop_database, name)
        early, other = [await stack.enter_async_context(connected(url)) for _ in range(2)]
        await early.register()
        await other.connection.execute("ANALYZE")
        await _plan_everything(early)
        await _fill(other)
        await other.connection.execute("ANALYZE")
        yield Deep(
            planned_empty=early,
            planned_full=await stack.enter_async_context(connected(url)),
            other=other,
            queue_id=(await other.queue("deep"))["id"],
            heads=await other.column(
                "SELECT w.place FROM waiting w JOIN action_queue q ON q.id = w.line_id"
                " WHERE q.concurrency_key = '' ORDER BY 1 LIMIT 500"
            ),
        )


async def _plan_everything(protocol: Protocol) -> None:
    """Let the session plan every statement."""
    await protocol.put("warm", max_concurrent=5, max_queued=9)
    for _ in range(2):
        _, grants = await protocol.admit(request("warm"), request("warm", idempotency_key="w"))
        for one in ids_in(grants):
            await protocol.run(one)
            await protocol.settle((one, 1))
        (one,) = await protocol.submit("warm")
        await protocol.claim(one)
        await protocol.hand_back(one)
        await protocol.cancel(one)
        await protocol.grant((await protocol.queue("warm"))["id"])
        for sweep in (
            protocol.due_completions(),
            protocol.missing_offers({"default": 0}),
            protocol.grantable_queues(),
        ):
            await sweep
        await protocol.wake_due()
        await protocol.expire_due()
        await protocol.reclaim()
        await protocol.stop_overdue()
        await protocol.drifted_queues()


async def _fill(protocol: Protocol) -> None:
    await protocol.put("deep", max_concurrent=0)
    await protocol.put("keyed", max_concurrent=0, concurrency_key="/key")
    await protocol.connection.execute(f"""
        INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)
        SELECT id, '', 4 FROM action WHERE ref = 'deep' UNION ALL
        SELECT id, n::text, 1 FROM action, generate_series(1, {KEYS}) n WHERE ref = 'keyed';
        INSERT INTO execution (action_id, queue_id, status, request_hash, queued_at)
        SELECT q.action_id, q.id, 'queued', gen_random_uuid(), now()
        FROM action_queue q JOIN action a ON a.id = q.action_id,
             generate_series(1, CASE a.ref WHEN 'deep' THEN {WAITING} WHEN 'keyed' THEN 1 ELSE 0 END);
        INSERT INTO waiting (line_id, place)
        SELECT queue_id, id FROM execution WHERE status = 'queued' ORDER BY id;
    """)
    await protocol.connection.execute(COUNT_QUEUES)


def assert_small(cost: Cost, rows: int, what: str) -> None:
    assert cost.pages <= PAGES_PER_STATEMENT + PAGES_PER_ROW * rows, f"{what}: {cost}"
    # The watchdog may read whole slim tables.
    assert not cost.full_scans.keys() & {"execution", "waiting", "action_queue", "attempt"}, f"{what}: {cost}"


@pytest.mark.parametrize("planned", ["planned_empty", "planned_full"])
@pytest.mark.parametrize("limit", [1, 100])
async def test_the_cost_of_every_statement_is_independent_of_how_many_wait(
    deep: Deep, planned: str, limit: int
) -> None:
    session: Protocol = getattr(deep, planned)
    heads = deep.heads[:limit]
    pairs = [(i, 1) for i in heads]
    steps: list[tuple[str, int, Callable[[], Awaitable[object]]]] = [
        ("grant", limit, lambda: session.grant(deep.queue_id)),
        ("claim", limit, lambda: session.claim(*heads)),
        ("hand_back", 1, lambda: session.hand_back(heads[0])),
        ("grant again", 1, lambda: session.grant(deep.queue_id)),
        ("claim again", 1, lambda: session.claim(heads[0], attempt=2)),
        ("finish", 2 * limit, lambda: session.finish(*heads[1:])),
        ("finish again", 1, lambda: session.finish(heads[0], attempt=2)),
        ("settle", 2 * limit, lambda: session.settle((heads[0], 2), *pairs[1:])),
        # Every grant counts the held slots.
        ("admit", 1 + limit, lambda: session.submit("deep")),
        ("admit many", 50 + limit, lambda: session.submit("deep", 50)),
        ("admit a known key", 2, lambda: session.admit(request("warm", idempotency_key="w"))),
        ("cancel", 70, lambda: session.cancel(*deep.heads[-50:])),
        ("missing_offers", 2 * limit, lambda: session.missing_offers({"default": 0})),
        ("due_completions", 60, session.due_completions),
        ("wake_due", 1, session.wake_due),
        ("expire_due", 1, session.expire_due),
        ("reclaim", 2 * limit, session.reclaim),
        ("due_cancels", 1, session.due_cancels),
        ("stop_overdue", 2 * limit, session.stop_overdue),
        ("grantable_queues", 20, lambda: session.grantable_queues(queues_max=20)),
        ("drifted_queues", 20, lambda: session.drifted_queues(deep.queue_id, limit=20)),
    ]  # fmt: skip
    async with session.undone():
        await session.connection.execute(
            "UPDATE action_queue SET max_concurrent = $1 WHERE id = $2", limit, deep.queue_id
        )
        for what, rows, call in steps:
            assert_small(await cost_of(session, call()), rows, what)
        held = set(await session.held())
        assert held == set(await session.column(
            "SELECT execution_id FROM slot WHERE queue_id = $1 AND claimed_at IS NULL", deep.queue_id
        ))  # fmt: skip
        assert len(held) == limit


@pytest.mark.parametrize("planned", ["planned_empty", "planned_full"])
async def test_one_of_ten_thousand_queues_does_not_read_the_others(deep: Deep, planned: str) -> None:
    session: Protocol = getattr(deep, planned)
    key = str(KEYS // 2)
    async with session.undone():
        queue_id = (await session.queue("keyed", key))["id"]
        assert_small(await cost_of(session, session.grant(queue_id)), 1, "grant")
        (one,) = await session.held()
        again = session.submit("keyed", parameters={"key": key})
        assert_small(await cost_of(session, again), 1, "admit")
        first_of_a_key = session.submit("keyed", parameters={"key": "a new one"})
        assert_small(await cost_of(session, first_of_a_key), 2, "admit to a new queue")
        assert_small(await cost_of(session, session.claim(one)), 1, "claim")
        assert_small(await cost_of(session, session.finish(one)), 1, "finish")
        assert_small(await cost_of(session, session.settle((one, 1))), 2, "settle")


async def test_ten_thousand_queues_with_one_waiting_each_are_all_granted(deep: Deep) -> None:
    session = deep.planned_full
    async with session.undone():
        await session.connection.execute("UPDATE action_queue SET paused = true WHERE id = $1", deep.queue_id)
        granted = 0
        while queue_ids := await session.grantable_queues():
            granted += len((await session.grant(*queue_ids)).granted)
        assert granted == KEYS


async def test_dead_entries_at_the_head_of_the_queue_are_skipped(deep: Deep) -> None:
    """An old snapshot (a backup, a forgotten session) keeps dead rows from being vacuumed."""
    session = deep.planned_empty
    snapshot = deep.other.connection.transaction(isolation="repeatable_read")
    await snapshot.start()
    try:
        await deep.other.column("SELECT 1 FROM waiting LIMIT 1")
        (past,) = await session.column(
            f"SELECT max(w) FROM (SELECT place AS w FROM waiting WHERE line_id = {deep.queue_id}"
            f" ORDER BY 1 LIMIT {DEAD}) w"
        )
        # As after many cancels: the stored head was not moved.
        await session.connection.execute(
            f"DELETE FROM waiting WHERE line_id = {deep.queue_id} AND place <= {past}"
        )
        await session.connection.execute(
            f"UPDATE action_queue SET max_concurrent = 2 WHERE id = {deep.queue_id}"
        )
        await session.connection.execute(
            f"UPDATE queue_state SET depth = depth - {DEAD} WHERE queue_id = {deep.queue_id}"
        )
        async with session.undone():
            paid_once = await cost_of(session, session.grant(deep.queue_id))
            assert paid_once.pages > DEAD / 200, "the dead entries are not there"
            heads = await session.held()
            await session.run(*heads)
            next_grant = await cost_of(session, session.settle(*((i, 1) for i in heads)))
            assert_small(next_grant, 4, "settle and grant behind the dead")
    finally:
        await snapshot.rollback()
