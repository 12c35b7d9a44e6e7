"""Concurrency keys: one queue per action and key, each with the action's limit (P1, P2, P9)."""

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import Environment
from tests.support.processes import Service
from tests.support.sizes import sizes
from tests.support.traffic import ask, request

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


async def keyed(env: Environment, ref: str, **fields: Any) -> None:
    """Define an action whose executions last until they are cancelled."""
    await env.start_silent_worker("unserved")
    await env.put(ref, entrypoint="tests.e2e.actions:hold", pool="unserved", **fields)


async def keys_of(env: Environment, ids: list[int]) -> list[str]:
    rows = await env.history.rows(
        "SELECT e.key FROM ledger.execution e WHERE e.id = ANY ($1) ORDER BY e.id",
        ids,
    )
    return [row["key"] for row in rows]


async def cancel_all(env: Environment, ids: list[int]) -> None:
    await env.cancel(*ids)
    await env.ended(*ids)


async def test_a_submitter_cannot_bypass_a_limit_with_keys_of_its_own(env: Environment) -> None:
    await keyed(env, "plain", max_concurrent=1)
    await keyed(env, "pointing", max_concurrent=1, concurrency_key="/id")
    bodies: list[dict[str, Any]] = [
        *({"action_ref": "plain", "concurrency_key": f"{n}"} for n in range(4)),
        *({"action_ref": "pointing", "parameters": {"id": 7}, "concurrency_key": f"{n}"} for n in range(4)),
        {"action_ref": "pointing", "concurrency_key": "7"},
    ]
    answer = await env.http.post("/executions", json=bodies)
    replies = await ask(env.amqp_url, lambda to: [request(body, reply_to=to) for body in bodies])
    for item, (kind, reply) in zip(answer.json()["items"], replies, strict=True):
        assert (item["code"], kind, reply["code"]) == (
            "invalid_parameters",
            "execution.rejected",
            "invalid_parameters",
        )
        for sentence in (item["detail"], reply["message"]):
            assert sentence.startswith("concurrency_key: ")
            assert "submitter_keys" in sentence
    for ref in ("plain", "pointing"):
        assert (await env.stats(ref))["total_enqueued"] == 0
    # The key that the parameters name may be given as well.
    same = await env.submit("pointing", parameters={"id": 7}, concurrency_key="7")
    assert await keys_of(env, [same]) == ["7"]
    await cancel_all(env, [same])


async def test_a_full_queue_is_refused_at_once_with_its_numbers_over_http_and_over_the_broker(
    env: Environment,
) -> None:
    await keyed(env, "bounded", max_concurrent=1, max_queued=2, when_full="reject", submitter_keys=True)
    ids = [await env.submit("bounded") for _ in range(3)]
    numbers = "2 waiting of at most 2, 1 running of at most 1"
    refused = await env.http.post("/executions", json={"action_ref": "bounded"})
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert numbers in refused.json()["detail"]
    ((kind, reply),) = await ask(env.amqp_url, lambda to: [request({"action_ref": "bounded"}, reply_to=to)])
    assert (kind, reply["code"]) == ("execution.rejected", "queue_full")
    assert numbers in reply["message"]
    # Another key has a queue of its own, and a position that becomes free is used again.
    other = await env.submit("bounded", concurrency_key="other")
    await cancel_all(env, ids[:1])
    next_one = await env.submit("bounded")
    await cancel_all(env, [*ids[1:], other, next_one])


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
