"""Time to live: what does not start in time ends with a clear error, and those behind it go on."""

import asyncio

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
        "TURNSTILE_WORKER_POOLS": "default",
        "TURNSTILE_STOP_GRACE": "300ms",
    },
}


async def seconds_lived(stage: Stage, execution_id: int) -> float:
    seconds: float = await stage.history.value(
        "SELECT extract(epoch FROM completed_at - created_at)::float8 FROM execution WHERE id = $1",
        execution_id,
    )
    return seconds


async def test_what_nobody_serves_says_so_expires_with_a_clear_error_and_its_successor_runs(
    stage: Stage,
) -> None:
    await stage.put("lonely", pool="lonely", max_concurrent=1, entrypoint="tests.e2e.actions:noop")
    first = await stage.submit("lonely", ttl="2s")
    second = await stage.submit("lonely", parameters={"number": 7})
    assert (await stage.get(first))["waiting_on"] == {"reason": "no_worker", "pool": "lonely"}
    waiting = (await stage.get(second))["waiting_on"]
    assert (waiting["reason"], waiting["holders"]) == ("limit", [first])
    assert await stage.ended(first) == ["expired"]
    expired = await stage.get(first)
    assert expired["error"]["type"] == "Expired"
    assert expired["error"]["message"].startswith("did not start within its time to live, which ended at 20")
    assert 2 <= await seconds_lived(stage, first) < 4
    # It had a slot and no worker: the slot goes on to the next, which runs as soon as somebody serves it.
    await stage.stands(second, "scheduled")
    worker = await stage.start_worker(TURNSTILE_WORKER_POOLS="lonely")
    assert await stage.ended(second) == ["completed"]
    assert (await stage.get(second))["result"] == 7
    await worker.stop()


async def test_without_a_time_to_live_it_waits_and_shows_in_the_figures(stage: Stage) -> None:
    await stage.put("patient", pool="nobody", max_concurrent=2, submitter_keys=True)
    ids = [await stage.submit("patient") for _ in range(5)]
    # Many ticks of the watchdog, in which another one expires.
    passing = await stage.submit("patient", concurrency_key="another", ttl="1s")
    assert await stage.ended(passing) == ["expired"]
    assert [await stage.status(i) for i in ids] == ["scheduled"] * 2 + ["queued"] * 3
    stats = await stage.stats("patient")
    assert (stats["active_count"], stats["queue_length"]) == (2, 3)
    assert stats["waiting"]["limit"] == 3
    oldest = await stage.history.value("SELECT queued_at FROM execution WHERE id = $1", ids[2])
    assert stats["oldest_enqueued_at"] == oldest.isoformat().replace("+00:00", "Z")
    await stage.cancel(*ids)
    await stage.ended(*ids)


async def test_the_action_s_time_to_live_holds_where_the_request_names_none(stage: Stage) -> None:
    await stage.put("brief", pool="nobody", ttl="500ms")
    own, given = await stage.submit("brief"), await stage.submit("brief", ttl="1h")
    assert await stage.ended(own) == ["expired"]
    assert await stage.status(given) == "scheduled"
    await stage.cancel(given)
    await stage.ended(given)


async def test_the_time_to_live_is_counted_from_the_first_enqueue_over_all_attempts(stage: Stage) -> None:
    retry = {"max_attempts": 5, "delay": "100ms", "jitter": 0}
    await stage.put("again", max_concurrent=1, retry=retry, entrypoint="tests.e2e.actions:scripted")
    # Held back until both stand in line.
    await stage.patch("again", paused=True)
    first = await stage.submit("again", parameters={"steps": ["FAIL"]}, ttl="3s")
    holder = await stage.submit("again", parameters={"steps": ["HANG"]})
    await stage.patch("again", paused=False)
    # Its first attempt fails, the other takes the slot, and it is in line again when its time is over.
    await stage.stands(holder, "running")
    await stage.stands(first, "queued")
    assert await stage.ended(first) == ["expired"]
    assert 3 <= await seconds_lived(stage, first) < 5
    assert await stage.attempts(first) == [(1, "retried")]
    await stage.cancel(holder)
    assert await stage.ended(holder) == ["cancelled"]


async def test_what_started_in_time_runs_to_its_end(stage: Stage) -> None:
    ids = [await stage.submit("tiny.5", parameters={"seconds": 3}, ttl="2s") for _ in range(5)]
    late = await stage.submit("tiny.5", ttl="500ms")
    assert await stage.ended(*ids, late) == ["completed"] * 5 + ["expired"]


async def test_many_that_expire_at_once_all_end_and_hand_their_slots_on(stage: Stage) -> None:
    await stage.put("crowd", pool="nobody", max_concurrent=3)
    body = {"action_ref": "crowd"}
    short = await stage.submit_many([{**body, "ttl": "1s"}] * 200)
    kept = await stage.submit_many([body] * 5)
    assert await stage.ended(*short) == ["expired"] * 200
    await asyncio.gather(*(stage.stands(execution_id, "scheduled") for execution_id in kept[:3]))
    assert [await stage.status(execution_id) for execution_id in kept[3:]] == ["queued"] * 2
    await stage.cancel(*kept)
    await stage.ended(*kept)
