"""`queue-stats`: every number equals a recount of the rows, at every moment."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from itertools import product
from typing import Any

import pytest

from tests.support.gates import advance, grant_all, put_resource, use
from tests.support.served import Served
from turnstile.common.database import Database
from turnstile.executor.queries.action_rows import read_queue_stats
from turnstile.executor.sql import query

RECOUNT = """
SELECT count(w.place) AS waiting, count(w.queue_id) AS later,
       (SELECT count(*) FROM slot s WHERE s.queue_id = ANY (l.ids))
       + (SELECT count(*) FROM unpublished_completion u
          WHERE u.queue_id = ANY (l.ids) AND u.gate_ids IS NOT NULL) AS slots,
       (SELECT count(*) FROM execution e WHERE e.queue_id = ANY (l.ids)) AS enqueued,
       (SELECT count(*) FROM execution e WHERE e.queue_id = ANY (l.ids) AND e.completed_at IS NOT NULL
        AND NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id)
        AND NOT EXISTS (SELECT FROM unpublished_completion u WHERE u.execution_id = e.id)) AS completed,
       (SELECT e.queued_at FROM execution e
        WHERE e.id = min(turnstile.id_of_place(w.place))) AS head_queued_at
FROM (
    SELECT array_agg(q.id) AS ids FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = $1
) l
LEFT JOIN waiting w ON w.line_id = ANY (l.ids) OR w.queue_id = ANY (l.ids)
GROUP BY l.ids
"""


REASONS = ("limit", "total", "resource", "rate", "pool", "paused", "no_worker")


def counts(**found: int) -> dict[str, int]:
    return {**dict.fromkeys(REASONS, 0), **found}


async def stats_beside_recount(database: Database, ref: str) -> tuple[Any, Any]:
    async with database.transaction() as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = await connection.fetchrow(query("queue_stats"), ref, 100)
        counted = await connection.fetchrow(RECOUNT, ref)
    assert row is not None
    return read_queue_stats(row), counted


async def check_recount(database: Database, ref: str) -> None:
    stats, counted = await stats_beside_recount(database, ref)
    assert stats.queue_length == sum(stats.waiting.model_dump().values())
    assert stats.queue_length == counted["waiting"]
    assert (stats.active_count, stats.held_waiting) == (counted["slots"], counted["later"])
    assert sum(key.queue_length for key in stats.by_key) in (0, stats.queue_length)
    assert sum(key.active_count for key in stats.by_key) in (0, stats.active_count)
    assert stats.total_enqueued == counted["enqueued"]
    assert stats.total_completed == counted["completed"]
    assert stats.oldest_enqueued_at == counted["head_queued_at"]


async def test_an_unused_action_has_zeros(api: Served) -> None:
    await api.define("a.b", max_concurrent=3)
    stats = await api.get("/actions/a.b/queue-stats")
    assert list(stats) == [
        "action_id", "action_ref", "queue_length", "active_count", "held_waiting", "max_concurrent",
        "oldest_enqueued_at", "total_enqueued", "total_completed", "last_updated", "paused", "waiting",
        "by_key",
    ]  # fmt: skip
    assert stats["waiting"] == dict.fromkeys(REASONS, 0)
    assert (stats["action_ref"], stats["max_concurrent"], stats["oldest_enqueued_at"]) == ("a.b", 3, None)
    assert (stats["paused"], stats["by_key"]) == (False, [])
    for counter in ("queue_length", "active_count", "total_enqueued", "total_completed"):
        assert stats[counter] == 0
    assert stats["last_updated"].endswith("Z")


async def test_both_paths_give_the_same_answer(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    await api.submit_many("a.b", 3)
    answer = await api.http.get("/actions/a.b/queue-stats")
    assert answer.json() == await api.get("/actions/a.b/queue-stats")
    assert answer.json()["queue_length"] == 2
    assert (await api.http.get("/actions/no.such/queue-stats")).status_code == 404


async def test_every_number_equals_a_recount_at_each_step(api: Served) -> None:
    await api.define("a.b", max_concurrent=2)
    await api.register_worker()
    ids = await api.submit_many("a.b", 10)
    await check_recount(api.database, "a.b")
    for step in (
        api.claim(ids[0]),
        api.finish(ids[0]),
        api.settle(ids[0]),
        api.http.post(f"/api/v1/executions/{ids[5]}/cancel"),
        api.settle(ids[5], 0),
        api.define("a.b", max_concurrent=5),
        api.define("a.b", max_concurrent=0),
    ):
        await step
        await check_recount(api.database, "a.b")
    assert (await api.get("/actions/a.b/queue-stats"))["total_completed"] == 2


async def test_every_sample_under_load_equals_a_recount(api: Served) -> None:
    await api.define("a.b", max_concurrent=3, concurrency_key="/k")
    await api.register_worker()

    async def work(key: str) -> None:
        for _ in range(8):
            for execution_id in await api.submit_many("a.b", 6, parameters={"k": key}):
                await api.http.post(f"/api/v1/executions/{execution_id}/cancel")
                await api.settle(execution_id, 0)
                await api.settle(execution_id, 1)

    workers = [asyncio.create_task(work(key), name=f"load-{key}") for key in "abc"]
    samples = 0
    while not all(worker.done() for worker in workers):
        if samples or await api.database.fetchval("SELECT EXISTS (SELECT FROM action_queue)"):
            await check_recount(api.database, "a.b")
            samples += 1
    await asyncio.gather(*workers)
    assert samples > 5
    stats = await api.get("/actions/a.b/queue-stats")
    assert (stats["queue_length"], stats["active_count"], stats["total_enqueued"]) == (0, 0, 144)


async def test_beside_a_free_slot_they_wait_for_a_worker_or_the_dispatch(api: Served) -> None:
    await api.define("a.b", max_concurrent=2)
    await api.submit_many("a.b", 5)
    # What a crash between two commits may leave for the watchdog: a free slot beside a queue.
    await add_a_slot(api)
    assert await waiting(api) == counts(limit=2, no_worker=1)
    await api.register_worker(lease_seconds=0)
    assert await waiting(api) == counts(limit=2, no_worker=1)
    await api.register_worker("worker-2")
    assert await waiting(api) == counts(limit=2, pool=1)
    await api.define("a.b", max_concurrent=0)
    assert await waiting(api) == counts(limit=3)
    await api.define("a.b", max_concurrent=2, paused=True)
    assert await waiting(api) == counts(paused=3)


async def test_only_a_live_worker_of_the_pool_counts(api: Served) -> None:
    await api.define("a.b", max_concurrent=4)
    await api.submit_many("a.b", 6)
    await add_a_slot(api)
    for hindrance in (
        "worker SET pools = '{other}'",
        "worker SET draining_at = now()",
        "worker SET stopped_at = now()",
        "worker SET lost_at = now()",
        "worker_lease SET expires_at = now()",
    ):
        for table in ("worker", "worker_lease"):
            await api.database.fetch(f"DELETE FROM {table}")
        await api.register_worker()
        assert await waiting(api) == counts(limit=1, pool=1)
        await api.database.fetch(f"UPDATE {hindrance}")
        assert await waiting(api) == counts(limit=1, no_worker=1), hindrance


async def test_different_reasons_of_several_keys_add_up(api: Served) -> None:
    await api.define("a.b", max_concurrent=1, concurrency_key="/k")
    for key, count in (("full", 4), ("free", 3), ("paused", 6)):
        await api.submit_many("a.b", count, parameters={"k": key})
    await add_a_slot(api, "free")
    await api.database.fetch("UPDATE action_queue SET paused = true WHERE concurrency_key = 'paused'")
    assert await waiting(api) == counts(limit=3 + 1, paused=5, no_worker=1)
    await api.register_worker()
    assert await waiting(api) == counts(limit=3 + 1, paused=5, pool=1)
    stats = await api.get("/actions/a.b/queue-stats")
    assert (stats["queue_length"], stats["active_count"]) == (10, 3)
    assert stats["by_key"] == [
        {"concurrency_key": "paused", "queue_length": 5, "active_count": 1, "held_waiting": 0},
        {"concurrency_key": "full", "queue_length": 3, "active_count": 1, "held_waiting": 0},
        {"concurrency_key": "free", "queue_length": 2, "active_count": 1, "held_waiting": 0},
    ]


async def test_each_execution_shows_the_reason_under_which_it_is_counted(api: Served) -> None:
    await api.define("a.b", max_concurrent=3)
    ids = await api.submit_many("a.b", 8)
    await add_a_slot(api)
    for worker, paused, trouble in product((False, True), (False, True), (None, "connection refused")):
        api.parts["broker"] = trouble
        await api.database.fetch("UPDATE action_queue SET paused = $1", paused)
        if worker:
            await api.register_worker()
        shown = [await api.get(f"/executions/{execution_id}") for execution_id in ids]
        reasons = Counter(s["waiting_on"]["reason"] for s in shown if s["status"] == "queued")
        # What only an unreachable server holds up counts with what waits for its dispatch.
        reasons["pool"] = reasons.pop("unavailable" if trouble else "handing_over", 0)
        counts = await waiting(api)
        assert {name: reasons[name] for name in counts} == counts, (worker, paused, trouble)


async def test_a_long_queue_is_not_read(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    await api.submit_many("a.b", 3)
    await api.database.fetch(
        "INSERT INTO waiting (line_id, place)"
        " SELECT q.id, 1000 + n FROM action_queue q, generate_series(1, 10000) n"
    )
    await api.database.fetch("UPDATE queue_state SET depth = depth + 10000")
    await api.database.fetch("ANALYZE")
    plan = await api.database.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {query('queue_stats')}".replace("$1", "'a.b'").replace("$2", "100")
    )
    assert read_from("waiting", json.loads(plan)) <= 2
    assert (await waiting(api))["limit"] == 10_002


@pytest.mark.parametrize("fair", [False, True])
async def test_with_gates_every_number_equals_a_recount_at_each_step(api: Served, fair: bool) -> None:
    await api.register_worker()
    rate = {"starts": 4, "per": 3600}
    await put_resource(api.database, "first", 4, order="fair" if fair else "arrival")
    await put_resource(api.database, "later", 3, rate=rate)
    for ref in ("a.b", "a.c"):
        await api.define(ref, max_concurrent=3, concurrency_key="/k")
        await use(api.database, ref, "first", ("later", 2), max_concurrent_total=5, fair=fair)
    ids = [each for key in "xyz" for each in await api.submit_many("a.b", 4, parameters={"k": key})]
    others = await api.submit_many("a.c", 2, parameters={"k": "x"})
    await grant_all(api.database)

    async def step(change: Awaitable[Any]) -> None:
        await change
        await check_reasons(api, "a.b", ids)
        await check_reasons(api, "a.c", others)

    await step(advance(api.database))
    await step(api.database.fetch("UPDATE worker SET draining_at = now()"))
    without_workers = await waiting(api)
    assert (without_workers["total"], without_workers["resource"], without_workers["rate"]) == (0, 0, 0)
    assert without_workers["no_worker"] > 0
    await step(api.database.fetch("UPDATE worker SET draining_at = NULL"))
    (granted,) = [row[0] for row in await api.database.fetch("SELECT execution_id FROM slot")]
    later = await api.database.fetchval("SELECT min(place) FROM waiting WHERE queue_id IS NOT NULL")
    await step(api.claim(granted))
    await step(api.finish(granted))
    await step(api.settle(granted))
    await step(api.http.post(f"/api/v1/executions/{later}/cancel"))
    await step(api.settle(later, 0))
    await step(api.database.fetch("UPDATE action_queue SET paused = true WHERE concurrency_key = 'y'"))
    await step(api.database.fetch("UPDATE gate SET paused = true WHERE name = 'later'"))
    await step(put_resource(api.database, "later", 1, rate=rate, paused=True))
    await step(put_resource(api.database, "later", 30, rate=rate))
    await step(use(api.database, "a.b", "first", ("later", 2), max_concurrent_total=0))
    await step(use(api.database, "a.b", "first"))
    await step(use(api.database, "a.b", rate_starts=1, rate_per_seconds=3600.0))
    await step(api.define("a.b", max_concurrent=0, concurrency_key="/k"))
    await step(api.define("a.b", max_concurrent=9, concurrency_key="/k"))


async def check_reasons(api: Served, ref: str, ids: list[int]) -> None:
    """Compare every number with a recount, and each reason with those that the executions show."""
    await check_recount(api.database, ref)
    shown = [await api.get(f"/executions/{execution_id}") for execution_id in ids]
    reasons = Counter(s["waiting_on"]["reason"] for s in shown if s["status"] == "queued")
    reasons["pool"] = reasons.pop("handing_over", 0)
    assert (await waiting(api, ref)) == counts(**{name: count for name, count in reasons.items() if count})


async def add_a_slot(api: Served, key: str = "") -> None:
    """Raise the limit of a queue by one slot, without a grant."""
    await api.database.fetch(
        "UPDATE action_queue SET max_concurrent = max_concurrent + 1 WHERE concurrency_key = $1", key
    )


async def waiting(api: Served, ref: str = "a.b") -> dict[str, int]:
    """Return the split of the queue; the metrics show the same one."""
    split = dict((await api.get(f"/actions/{ref}/queue-stats"))["waiting"])
    row = await api.database.fetchrow(query("gauges"), 1000, [], 1000)
    assert row is not None
    shown = {action["action_ref"]: action["waiting"] for action in json.loads(row["actions"] or "[]")}
    assert (shown.get(ref) or counts()) == split
    return split


def read_from(table: str, plan: Any) -> int:
    """Return how many rows of a table the nodes of a plan have read."""
    if isinstance(plan, list):
        return sum(read_from(table, part) for part in plan)
    if not isinstance(plan, dict):
        return 0
    here = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return int(here) + sum(read_from(table, part) for part in plan.values())
