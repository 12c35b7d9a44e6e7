"""Thousands that wait, in one queue and in a queue of each key: all run, in bounded memory (P9).

Whole services: what is bounded is the memory of the executor's processes.
"""

import resource
from pathlib import Path

import pytest

from tests.support.environment import Environment
from tests.support.processes import Service
from tests.support.sizes import sizes

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
        "TURNSTILE_WORKER_CONCURRENCY": "100",
        "TURNSTILE_LEASE_DURATION": "20s",
    }
}
MEMORY_BYTES_MAX = 150_000_000
"""Largest growth of an executor with thousands of queues."""


@sizes("depth", short=1_000, whole=10_000)
async def test_of_thousands_that_wait_for_one_action_none_is_dropped(env: Environment, depth: int) -> None:
    await env.patch("noop", max_concurrent=0)
    ids = []
    for start in range(0, depth, 1000):
        bodies = [{"action_ref": "noop", "parameters": {"number": n}} for n in range(start, start + 1000)]
        ids += await env.submit_many(bodies)
    assert (await env.stats("noop"))["queue_length"] == depth
    await env.patch("noop", max_concurrent=90)
    await env.ended(*ids, deadline_seconds=60)
    rows = await env.history.rows(
        "SELECT result::text::int AS number FROM ledger.execution WHERE id = ANY ($1) ORDER BY id", ids
    )
    assert [row["number"] for row in rows] == list(range(depth))
    assert (await env.history.grant_order("noop"))[-depth:] == ids


@sizes("count", short=1_000, whole=10_000)
async def test_thousands_of_keys_with_one_waiting_each_are_all_granted_in_bounded_memory(
    env: Environment, count: int
) -> None:
    await env.patch("one", paused=True)
    ended_before = await env.history.value(
        "SELECT count(*) FROM ledger.execution WHERE completed_at IS NOT NULL"
    )
    before = memory_bytes(env.executor)
    ids = []
    for start in range(0, count, 1000):
        ids += await env.submit_many(
            [{"action_ref": "one", "concurrency_key": f"{count}-{n}"} for n in range(start, start + 1000)]
        )
    stats = await env.stats("one")
    assert (stats["queue_length"], stats["waiting"]["paused"], stats["active_count"]) == (count, count, 0)
    await env.patch("one", paused=False)

    await env.history.ended(count + ended_before, deadline_seconds=60)
    grown = memory_bytes(env.executor) - before
    assert grown < MEMORY_BYTES_MAX
    keys = "SELECT count(DISTINCT key) FROM ledger.execution WHERE action_ref = 'one' AND key LIKE $1"
    assert await env.history.value(keys, f"{count}-%") == count


def memory_bytes(service: Service) -> int:
    """Return what its processes occupy."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in service.pids]
    return sum(pages) * resource.getpagesize()
