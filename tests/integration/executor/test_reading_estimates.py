"""`estimated_start` and `unavailable`: when a waiting execution starts, from the history and the servers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.protocol import Protocol
from tests.support.served import Served
from turnstile.executor.sql import query

# Runs of 10 s each, one after the other, until now.
HISTORY = """
INSERT INTO execution (action_id, queue_id, status, request_hash, attempt, worker_id, created_at, queued_at,
                       scheduled_at, started_at, completed_at)
SELECT q.action_id, q.id, 'completed', gen_random_uuid(), 1, 'w', h.at, h.at,
       h.at, h.at, h.at + interval '10 s'
FROM action_queue q, LATERAL (
    SELECT now() - make_interval(secs => 10.0 * n) AS at FROM generate_series($2::integer, 1, -1) n
) h
WHERE q.action_id = (SELECT id FROM action WHERE ref = $1) AND q.concurrency_key = $3
"""
LINE = """
WITH newcomer AS (
    INSERT INTO execution (action_id, queue_id, status, request_hash, queued_at)
    SELECT q.action_id, q.id, 'queued', gen_random_uuid(), now()
    FROM action_queue q, generate_series(1, $1::integer)
    RETURNING id, queue_id
), placed AS (
    INSERT INTO waiting (line_id, place) SELECT queue_id, id FROM newcomer
)
UPDATE queue_state SET depth = depth + $1
"""


@pytest.fixture
async def api(api: Served) -> Served:
    await api.register_worker()
    return api


async def history(api: Served, ref: str, *, runs: int = 50, key: str = "") -> None:
    """Give an action a past. It must have a queue: something was submitted before."""
    await api.database.fetch(HISTORY, ref, runs, key)


async def queue(api: Served, **fields: Any) -> list[int]:
    """Submit one that holds the only slot of `a.b` and three that wait for it, after 50 runs of 10 s."""
    await api.define("a.b", max_concurrent=1)
    await api.run((await api.submit("a.b"))["id"])
    await history(api, "a.b")
    return await api.submit_many("a.b", 4, **fields)


async def expected(api: Served, execution_id: int) -> tuple[float, float] | None:
    """Return the expected start in seconds from now."""
    shown = (await api.get(f"/executions/{execution_id}"))["estimated_start"]
    if shown is None:
        return None
    assert list(shown) == ["earliest", "latest"]
    assert all(text.endswith("Z") for text in shown.values())
    earliest, latest = (datetime.fromisoformat(text) - datetime.now(UTC) for text in shown.values())
    return earliest.total_seconds(), latest.total_seconds()


async def test_the_start_follows_from_recent_runs_and_the_position(api: Served) -> None:
    _, *waiting = await queue(api)
    for place, execution_id in enumerate(waiting, start=1):
        found = await expected(api, execution_id)
        assert found is not None
        assert 6.0 * place < found[0] < 10.0 * place < found[1] < 15.0 * place


async def test_there_is_no_estimate_before_a_run_has_ended(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    granted, waiting = await api.submit_many("a.b", 2)
    assert await expected(api, granted) is None
    await api.claim(granted)
    assert await expected(api, waiting) is None


async def test_a_new_key_takes_the_pace_of_the_other_keys(api: Served) -> None:
    await api.define("a.b", max_concurrent=1, concurrency_key="/k")
    await api.submit_many("a.b", 1, parameters={"k": "x"})
    await history(api, "a.b", key="x")
    _, waiting = await api.submit_many("a.b", 2, parameters={"k": "y"})
    found = await expected(api, waiting)
    assert found is not None
    assert 7 < found[0] < 10 < found[1] < 14


async def test_a_granted_execution_starts_when_such_are_claimed(api: Served) -> None:
    granted, *_ = await queue(api)
    found = await expected(api, granted)
    assert found is not None
    assert -1 < found[0] <= found[1] < 2


async def test_a_started_execution_has_no_estimate(api: Served) -> None:
    granted, *_ = await queue(api)
    await api.claim(granted)
    assert await expected(api, granted) is None
    await api.finish(granted)
    assert await expected(api, granted) is None


async def test_a_blocked_execution_has_no_estimate(api: Served) -> None:
    _, waiting, *_ = await queue(api)
    for table, hindrance, end in (
        ("action_queue", "paused = true", "paused = false"),
        ("action_queue", "max_concurrent = 0", "max_concurrent = 1"),
        ("worker", "draining_at = now()", "draining_at = NULL"),
        ("worker", "pools = '{other}'", "pools = '{default}'"),
    ):
        assert await expected(api, waiting) is not None
        await api.database.fetch(f"UPDATE {table} SET {hindrance}")
        assert await expected(api, waiting) is None, hindrance
        await api.database.fetch(f"UPDATE {table} SET {end}")


async def test_a_delayed_execution_starts_after_its_run_at(api: Served) -> None:
    await queue(api)
    late = await api.submit("a.b", run_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    found = await expected(api, late["id"])
    assert found is not None
    # The queue is empty then; a run at that moment ends within one run length.
    assert 3590 < found[0] <= 3600 < found[1] < 3620
    soon = await api.submit("a.b", run_at=(datetime.now(UTC) + timedelta(seconds=5)).isoformat())
    found = await expected(api, soon["id"])
    assert found is not None
    # After three that are queued already.
    assert 24 < found[0] < 40 < found[1] < 64


async def test_an_execution_that_waits_for_its_dispatch_names_the_unreachable_server(api: Served) -> None:
    granted, waiting, *_ = await queue(api)
    api.parts["broker"] = "connection refused"
    shown = await api.get(f"/executions/{granted}")
    assert shown["waiting_on"] == {
        "reason": "unavailable",
        "part": "broker",
        "message": "connection refused",
    }
    assert shown["estimated_start"] is None
    shown = await api.get(f"/executions/{waiting}")
    assert (shown["waiting_on"]["reason"], shown["estimated_start"]) == ("limit", None)
    api.parts["broker"] = None
    shown = await api.get(f"/executions/{granted}")
    assert shown["waiting_on"]["reason"] == "handing_over"
    assert shown["waiting_on"]["granted_at"] == shown["scheduled_at"]
    assert await expected(api, waiting) is not None


async def cost_of_recent_grants(protocol: Protocol, execution_id: int) -> Cost:
    async with protocol.transaction():
        await protocol.connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        return await cost_of(
            protocol, protocol.connection.fetchrow(query("queue_grants"), execution_id, 500, 200, 64)
        )


async def test_the_cost_of_recent_grants_depends_neither_on_queue_nor_on_history(protocol: Protocol) -> None:
    connection = protocol.connection
    await protocol.put("other", max_concurrent=0)
    await protocol.put("a", max_concurrent=1)
    await protocol.submit("other")
    await protocol.submit("a")
    await connection.execute(HISTORY, "a", 1000, "")
    (last,) = (await protocol.submit("a"))[-1:]
    await connection.execute("ANALYZE")
    small = await cost_of_recent_grants(protocol, last)
    # The plan may read as far back as the bound; 500 rows of this size fill 10 to 20 pages.
    assert small.pages < 150, small
    await connection.execute(HISTORY, "a", 20_000, "")
    await connection.execute(LINE, 20_000)
    await connection.execute("ANALYZE")
    for execution_id in (last, await connection.fetchval("SELECT max(id) FROM execution")):
        large = await cost_of_recent_grants(protocol, execution_id)
        assert large.pages < small.pages + 50, large
        assert not large.full_scans.keys() & {"execution", "waiting"}, large
