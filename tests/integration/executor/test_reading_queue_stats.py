"""`queue-stats` equals a recount of the rows, and each execution shows the reason under which it counts."""

from typing import Any

from tests.support.served import Served
from turnstile.executor.dashboard.reading import read_queues

REASONS = ("limit", "total", "resource", "rate", "pool", "paused", "no_worker")
_RECOUNT = """
SELECT count(*) FILTER (WHERE e.status = 'queued') AS waiting,
       count(*) FILTER (WHERE e.status IN ('scheduled', 'running')) AS held, count(*) AS enqueued,
       count(e.completed_at) AS completed, min(e.queued_at) FILTER (WHERE e.status = 'queued') AS oldest_at
FROM ledger.current_execution e WHERE e.action_ref = $1
"""


def counts(**found: int) -> dict[str, int]:
    return {**dict.fromkeys(REASONS, 0), **found}


async def stats(api: Served, ref: str = "a.b") -> dict[str, Any]:
    return await api.get(f"/actions/{ref}/queue-stats")


async def waiting(api: Served, ref: str = "a.b") -> dict[str, int]:
    return dict((await stats(api, ref))["waiting"])


async def check_recount(api: Served) -> None:
    """Compare the numbers with the rows; nothing changes meanwhile."""
    found, rows = await stats(api), await api.database.fetchrow(_RECOUNT, "a.b")
    assert rows is not None
    assert found["queue_length"] == sum(found["waiting"].values()) == rows["waiting"]
    assert found["active_count"] == rows["held"]
    assert (found["total_enqueued"], found["total_completed"]) == (rows["enqueued"], rows["completed"])
    assert (found["oldest_enqueued_at"] is None) == (rows["oldest_at"] is None)


async def test_an_unused_action_has_zeros(api: Served) -> None:
    await api.define("a.b", max_concurrent=3)
    found = await stats(api)
    assert list(found) == [
        "action_id", "action_ref", "queue_length", "active_count", "held_waiting", "max_concurrent",
        "oldest_enqueued_at", "total_enqueued", "total_completed", "last_updated", "paused", "waiting",
        "by_key",
    ]  # fmt: skip
    assert found["waiting"] == counts()
    assert (found["action_ref"], found["max_concurrent"], found["oldest_enqueued_at"]) == ("a.b", 3, None)
    assert (found["paused"], found["by_key"]) == (False, [])
    for counter in ("queue_length", "active_count", "total_enqueued", "total_completed"):
        assert found[counter] == 0
    assert found["last_updated"].endswith("Z")


async def test_both_paths_give_the_same_answer(api: Served) -> None:
    await api.define("a.b", max_concurrent=1)
    await api.submit_many("a.b", 3)
    answer = (await api.http.get("/actions/a.b/queue-stats")).json()
    assert answer | {"last_updated": ""} == await stats(api) | {"last_updated": ""}
    assert answer["queue_length"] == 3
    assert (await api.http.get("/actions/no.such/queue-stats")).status_code == 404


async def test_every_number_equals_a_recount_at_each_step(api: Served) -> None:
    await api.define("a.b", max_concurrent=2, runs=False)
    api.join(concurrency=20)
    ids = await api.submit_many("a.b", 10)
    await api.until_offered(*ids[:2])
    await check_recount(api)
    await api.run(ids[0])
    await api.until_offered(ids[2])
    await check_recount(api)
    await api.http.post(f"/api/v1/executions/{ids[5]}/cancel")
    await check_recount(api)
    await api.define("a.b", max_concurrent=5, runs=False)
    await api.until_offered(*ids[3:5], ids[6])
    await check_recount(api)
    await api.define("a.b", max_concurrent=0, runs=False)
    await check_recount(api)
    assert (await stats(api))["total_completed"] == 2


async def test_what_is_in_a_run_neither_waits_nor_has_a_slot(api: Served) -> None:
    await api.define("a.b", max_concurrent=2)
    api.join(concurrency=20)
    first, *ids = await api.submit_many("a.b", 10)
    await api.until_offered(first)
    await api.run(first)
    await api.until_offered(*ids)
    found, pool = await stats(api), await api.get("/pools/default")
    assert (found["queue_length"], found["active_count"], pool["held"], pool["wanted"]) == (0, 2, 2, 2)
    for path in ("/actions/a.b/queue", "/pools/default/queue"):
        assert [each["id"] for each in (await api.get(path))["holders"]] == ids[:2]
    listed = await api.get("/executions", action_ref="a.b", status="scheduled")
    assert sorted(each["id"] for each in listed["items"]) == ids
    # Without a leader the dashboard reads the rows.
    (queue,) = (await read_queues(api.database)).queues
    assert (queue.depth, queue.active_count, queue.max_concurrent) == (0, 2, 2)
