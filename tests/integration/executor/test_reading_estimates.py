"""`estimated_start` and `unavailable`: what record and servers say about when a waiting one starts."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.executor.page_counts import Cost, cost_of
from tests.support.protocol import Protocol
from tests.support.served import Served, serve
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
    INSERT INTO waiting SELECT queue_id, id FROM newcomer
)
UPDATE action_queue SET depth = depth + $1
"""


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.register_worker()
        yield served


async def history(api: Served, ref: str, *, runs: int = 50, key: str = "") -> None:
    """Give an action a past. It must have a queue: something was submitted before."""
    await api.database.fetch(HISTORY, ref, runs, key)


async def line(api: Served, **fields: Any) -> list[int]:
    """Submit one that holds the only slot of `a.b` and three that wait for it, after 50 runs of 10 s."""
    await api.define("a.b", max_concurrent=1)
    past = await api.submit("a.b")
    await api.claim(past["id"])
    await api.finish(past["id"])
    await api.settle(past["id"])
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


async def test_the_start_follows_from_the_recent_runs_and_the_place(api: Served) -> None:
    _, *waiting = await line(api)
    for place, execution_id in enumerate(waiting, start=1):
        found = await expected(api, execution_id)
        assert found is not None
        assert 6.0 * place < found[0] < 10.0 * place < found[1] < 15.0 * place


async def test_while_no_run_has_ended_no_start_is_expected(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    granted, waiting = await api.submit_many("a.b", 2)
    assert await expected(api, granted) is None
    await api.claim(granted)
    assert await expected(api, waiting) is None


async def test_a_key_that_has_run_nothing_yet_takes_the_pace_of_the_others(api: Served) -> None:
    await api.define("a.b", max_concurrent=1, concurrency_key="/k")
    await api.submit_many("a.b", 1, parameters={"k": "x"})
    await history(api, "a.b", key="x")
    _, waiting = await api.submit_many("a.b", 2, parameters={"k": "y"})
    found = await expected(api, waiting)
    assert found is not None
    assert 7 < found[0] < 10 < found[1] < 14


async def test_a_granted_one_is_expected_when_such_are_claimed(api: Served) -> None:
    granted, *_ = await line(api)
    found = await expected(api, granted)
    assert found is not None
    assert -1 < found[0] <= found[1] < 2


async def test_what_runs_or_has_ended_is_not_expected(api: Served) -> None:
    granted, *_ = await line(api)
    await api.claim(granted)
    assert await expected(api, granted) is None
    await api.finish(granted)
    assert await expected(api, granted) is None


@pytest.mark.parametrize(
    "hindrance",
    [
        "UPDATE action_queue SET paused = true",
        "UPDATE action_queue SET max_concurrent = 0",
        "UPDATE worker SET draining_at = now()",
        "UPDATE worker SET pools = '{other}'",
    ],
)
async def test_what_nothing_moves_has_no_expected_start(api: Served, hindrance: str) -> None:
    _, waiting, *_ = await line(api)
    assert await expected(api, waiting) is not None
    await api.database.fetch(hindrance)
    assert await expected(api, waiting) is None


async def test_what_is_not_due_is_expected_from_its_run_at_on(api: Served) -> None:
    await line(api)
    late = await api.submit("a.b", run_at=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    found = await expected(api, late["id"])
    assert found is not None
    # By then the line is gone; whoever runs at that moment has at most one run left.
    assert 3590 < found[0] <= 3600 < found[1] < 3620
    soon = await api.submit("a.b", run_at=(datetime.now(UTC) + timedelta(seconds=5)).isoformat())
    found = await expected(api, soon["id"])
    assert found is not None
    # Behind three that wait already.
    assert 24 < found[0] < 40 < found[1] < 64


async def test_what_waits_for_a_hand_over_names_the_server_out_of_reach(api: Served) -> None:
    granted, waiting, *_ = await line(api)
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
    assert (await api.get(f"/executions/{granted}"))["waiting_on"]["reason"] == "handing_over"
    assert await expected(api, waiting) is not None


async def look_at_the_pace(protocol: Protocol, execution_id: int) -> Cost:
    async with protocol.transaction():
        await protocol.connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        return await cost_of(
            protocol, protocol.connection.fetchrow(query("queue_pace"), execution_id, 500, 200, 64)
        )


async def test_the_pace_costs_the_same_however_many_wait_or_came_before(protocol: Protocol) -> None:
    connection = protocol.connection
    await protocol.put("other", max_concurrent=0)
    await protocol.put("a", max_concurrent=1)
    await protocol.submit("other")
    await protocol.submit("a")
    await connection.execute(HISTORY, "a", 1000, "")
    (last,) = (await protocol.submit("a"))[-1:]
    await connection.execute("ANALYZE")
    small = await look_at_the_pace(protocol, last)
    # The plan may look as far back as it is told to; 500 rows of this size fill some 10 to 20 pages.
    assert small.pages < 150, small
    await connection.execute(HISTORY, "a", 60_000, "")
    await connection.execute(LINE, 40_000)
    await connection.execute("ANALYZE")
    for execution_id in (last, await connection.fetchval("SELECT max(id) FROM execution")):
        large = await look_at_the_pace(protocol, execution_id)
        assert large.pages < small.pages + 50, large
        assert not large.full_scans.keys() & {"execution", "waiting"}, large
