"""`queue-stats` equals a recount of the rows, and each execution shows the reason under which it counts."""

from typing import Any

from tests.support.served import Served

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
