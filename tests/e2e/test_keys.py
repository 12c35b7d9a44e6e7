"""Concurrency keys: one line per action and key, each with the action's limit (P1, P2, P9)."""

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger import ledger_kept, read_ledger
from tests.support.sizes import sizes
from tests.support.stage import Stage
from tests.support.traffic import ask, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
        "TURNSTILE_WORKER_CONCURRENCY": "100",
        "TURNSTILE_LEASE_DURATION": "20s",
    }
}
MEMORY_BYTES_MAX = 150_000_000
"""What an executor may grow by while it holds so many lines."""

VALUES: list[tuple[Any, str]] = [
    ("blue", "blue"),
    ("", ""),
    ("ключ 🔑", "ключ 🔑"),
    (7, "7"),
    (-1.5, "-1.5"),
    (True, "true"),
    ({"b": 1, "a": [2]}, '{"a": [2], "b": 1}'),
]
"""Parameters, and the name of the line that each leads to."""


async def keyed(stage: Stage, ref: str, **fields: Any) -> None:
    """Define an action that keeps what it is given until it is cancelled."""
    await stage.put(ref, entrypoint="tests.e2e.actions:hold", pool="nobody", **fields)


async def lines_of(stage: Stage, ids: list[int]) -> list[str]:
    rows = await stage.history.rows(
        "SELECT q.concurrency_key FROM execution e JOIN action_queue q ON q.id = e.queue_id"
        " WHERE e.id = ANY ($1) ORDER BY e.id",
        ids,
    )
    return [row["concurrency_key"] for row in rows]


async def put_away(stage: Stage, ids: list[int]) -> None:
    await stage.cancel(*ids)
    await stage.ended(*ids)


async def test_each_value_at_the_pointer_has_a_line_of_its_own(stage: Stage) -> None:
    await keyed(stage, "pointed", max_concurrent=1, concurrency_key="/customer/id")
    bodies = [
        {"action_ref": "pointed", "parameters": {"customer": {"id": value}}}
        for value, _ in VALUES
        for _ in "ab"
    ]
    ids = await stage.submit_many(bodies)
    assert await lines_of(stage, ids) == [name for _, name in VALUES for _ in "ab"]
    assert [await stage.status(i) for i in ids] == ["scheduled", "queued"] * len(VALUES)
    await put_away(stage, ids)


async def test_no_value_at_the_pointer_is_refused_over_http_and_over_the_broker(stage: Stage) -> None:
    await keyed(stage, "strict", concurrency_key="/customer/id")
    wrong: list[dict[str, Any]] = [{}, {"customer": None}, {"customer": {"id": None}}, {"customer": 7}]
    bodies = [{"action_ref": "strict", "parameters": parameters} for parameters in wrong]
    answer = await stage.http.post("/executions", json=bodies)
    replies = await ask(stage.amqp_url, lambda to: [request(body, reply_to=to) for body in bodies])
    for item, (kind, reply) in zip(answer.json()["items"], replies, strict=True):
        assert (item["code"], kind, reply["code"]) == (
            "invalid_parameters",
            "execution.rejected",
            "invalid_parameters",
        )
        assert "/customer/id" in item["detail"]
        assert "/customer/id" in reply["message"]
    assert (await stage.stats("strict"))["total_enqueued"] == 0


async def test_a_submitter_cannot_pass_a_limit_with_keys_of_its_own(stage: Stage) -> None:
    await keyed(stage, "plain", max_concurrent=1)
    await keyed(stage, "pointing", max_concurrent=1, concurrency_key="/id")
    bodies: list[dict[str, Any]] = [
        *({"action_ref": "plain", "concurrency_key": f"{n}"} for n in range(4)),
        *({"action_ref": "pointing", "parameters": {"id": 7}, "concurrency_key": f"{n}"} for n in range(4)),
        {"action_ref": "pointing", "concurrency_key": "7"},
    ]
    answer = await stage.http.post("/executions", json=bodies)
    replies = await ask(stage.amqp_url, lambda to: [request(body, reply_to=to) for body in bodies])
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
        assert (await stage.stats(ref))["total_enqueued"] == 0
    # The key that the parameters name may be given as well.
    same = await stage.submit("pointing", parameters={"id": 7}, concurrency_key="7")
    assert await lines_of(stage, [same]) == ["7"]
    await put_away(stage, [same])


async def test_a_key_in_the_request_comes_before_the_pointer_where_submitters_may_name_keys(
    stage: Stage,
) -> None:
    await keyed(stage, "both", max_concurrent=1, concurrency_key="/id", submitter_keys=True)
    ids = await stage.submit_many(
        [
            {"action_ref": "both", "parameters": {"id": 7}},
            {"action_ref": "both", "parameters": {"id": 8}, "concurrency_key": "7"},
            {"action_ref": "both", "concurrency_key": "8"},
        ]
    )
    assert await lines_of(stage, ids) == ["7", "7", "8"]
    assert [await stage.status(i) for i in ids] == ["scheduled", "queued", "scheduled"]
    by_key = {key["concurrency_key"]: key for key in (await stage.stats("both"))["by_key"]}
    assert {k: (v["active_count"], v["queue_length"]) for k, v in by_key.items()} == {
        "7": (1, 1),
        "8": (1, 0),
    }
    await put_away(stage, ids)


async def test_each_line_has_the_action_s_limit_and_its_own_order(stage: Stage) -> None:
    keys = ["a", "b", "c"]
    async with ledger_kept(stage.system.database_url):
        ids = await stage.submit_many(
            [
                {"action_ref": "tiny.2", "concurrency_key": keys[n % 3], "parameters": {"seconds": 0.005}}
                for n in range(300)
            ]
        )
        assert set(await stage.ended(*ids)) == {"completed"}
        ledger = await read_ledger(stage.history)
    queues = await stage.history.rows("SELECT DISTINCT queue_id FROM execution WHERE id = ANY ($1)", ids)
    assert len(queues) == 3
    for queue in queues:
        assert ledger.most_held(queue["queue_id"]) == 2
        granted = [
            e.execution_id
            for e in ledger.entries
            if (e.place, e.step, e.queue_id) == ("slot", 1, queue["queue_id"])
        ]
        assert granted == sorted(granted)


async def test_a_full_line_is_refused_at_once_with_its_numbers_over_http_and_over_the_broker(
    stage: Stage,
) -> None:
    await keyed(stage, "bounded", max_concurrent=1, max_queued=2, when_full="reject", submitter_keys=True)
    ids = [await stage.submit("bounded") for _ in range(3)]
    numbers = "2 waiting of at most 2, 1 running of at most 1"
    refused = await stage.http.post("/executions", json={"action_ref": "bounded"})
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert numbers in refused.json()["detail"]
    ((kind, reply),) = await ask(stage.amqp_url, lambda to: [request({"action_ref": "bounded"}, reply_to=to)])
    assert (kind, reply["code"]) == ("execution.rejected", "queue_full")
    assert numbers in reply["message"]
    # Another key has a line of its own, and a place that becomes free is taken again.
    other = await stage.submit("bounded", concurrency_key="other")
    await put_away(stage, ids[:1])
    next_one = await stage.submit("bounded")
    await put_away(stage, [*ids[1:], other, next_one])


@sizes("depth", short=3_000, whole=10_000)
async def test_of_thousands_that_wait_for_one_action_none_is_dropped(stage: Stage, depth: int) -> None:
    await stage.patch("noop", max_concurrent=0)
    ids = []
    for start in range(0, depth, 1000):
        bodies = [{"action_ref": "noop", "parameters": {"number": n}} for n in range(start, start + 1000)]
        ids += await stage.submit_many(bodies)
    assert (await stage.stats("noop"))["queue_length"] == depth
    await stage.patch("noop", max_concurrent=90)
    await stage.ended(*ids, deadline_seconds=60)
    rows = await stage.history.rows(
        "SELECT result::text::int AS number FROM execution WHERE id = ANY ($1) ORDER BY id", ids
    )
    assert [row["number"] for row in rows] == list(range(depth))
    assert (await stage.history.grant_order("noop"))[-depth:] == ids


@sizes("count", short=3_000, whole=10_000)
async def test_thousands_of_keys_with_one_waiting_each_are_all_granted_in_bounded_memory(
    stage: Stage, count: int
) -> None:
    await stage.patch("one", paused=True)
    ended_before = await stage.history.value("SELECT sum(total_completed) FROM action_queue")
    before = memory_bytes(stage.system.executors[0].pid)
    ids = []
    for start in range(0, count, 1000):
        ids += await stage.submit_many(
            [{"action_ref": "one", "concurrency_key": f"{count}-{n}"} for n in range(start, start + 1000)]
        )
    stats = await stage.stats("one")
    assert (stats["queue_length"], stats["waiting"]["paused"], stats["active_count"]) == (count, count, 0)
    await stage.patch("one", paused=False)

    await stage.history.ended(count + ended_before, deadline_seconds=60)
    grown = memory_bytes(stage.system.executors[0].pid) - before
    assert grown < MEMORY_BYTES_MAX
    counts = await stage.history.rows(
        "SELECT total_completed, count(*) AS queues FROM action_queue q JOIN action a ON a.id = q.action_id"
        " WHERE a.ref = 'one' AND q.concurrency_key LIKE $1 GROUP BY 1",
        f"{count}-%",
    )
    assert [(row["total_completed"], row["queues"]) for row in counts] == [(1, count)]


def memory_bytes(pid: int) -> int:
    """Return what a process occupies."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()
    return int(pages[1]) * resource.getpagesize()
