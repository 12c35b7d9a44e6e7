"""Messages that come before what they speak of, or speak of nothing: tried again, in nobody's way (P9)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.stage import Stage
from tests.support.tap import tapped
from tests.support.traffic import publishing, request, until
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import EXECUTOR_RETRY, WORKER_RETRY, scheduled_key
from turnstile.common.messages import COMPLETED, SCHEDULED

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {
    "settings": {
        "TURNSTILE_DISPATCH_TIMEOUT": "1h",
        "TURNSTILE_SETTLE_TIMEOUT": "1h",
        "TURNSTILE_STOP_GRACE": "300ms",
    }
}
NOTHING = 2**60


def completion(execution_id: int, **properties: Any) -> Outgoing:
    body = {
        "execution_id": execution_id,
        "action_id": 1,
        "action_ref": "hold",
        "status": "completed",
        "attempt": 1,
        "completed_at": "2026-01-01T00:00:00Z",
    }
    return _from_a_service(COMPLETED, COMPLETED, body, **properties)


def offer(execution_id: int, **properties: Any) -> Outgoing:
    body = {"execution_id": execution_id, "attempt": 1, "action_ref": "noop"}
    return _from_a_service(SCHEDULED, scheduled_key("default"), body, **properties)


def _from_a_service(kind: str, routing_key: str, body: dict[str, Any], **properties: Any) -> Outgoing:
    return replace(request(json.dumps(body).encode(), **properties), type=kind, routing_key=routing_key)


async def next_id(stage: Stage) -> int:
    """Return the id that the next request will have."""
    await stage.ended(await stage.submit("noop"))
    following: int = await stage.history.value("SELECT last_value + 1 FROM execution_id_seq")
    return following


async def test_a_completion_before_its_row_and_before_its_end_is_tried_again_and_frees_one_slot(
    stage: Stage,
) -> None:
    execution_id = await next_id(stage)
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=EXECUTOR_RETRY) as again,
    ):
        await publisher.publish([completion(execution_id)])
        await again.until(lambda: len(again.heard) == 1, "a try without a row")
        assert await stage.submit("hold") == execution_id
        behind = await stage.submit("hold")
        await stage.stands(execution_id, "running")
        seen = len(again.heard)
        await again.until(lambda: len(again.heard) > seen, "a try before the end")
        assert [await stage.status(i) for i in (execution_id, behind)] == ["running", "queued"]
        await stage.cancel(execution_id, behind)
        await stage.ended(execution_id, behind)
        # The early one comes round once more, finds its execution ended, and is done with.
        seen = len(again.heard)
        marker = completion(NOTHING, headers={"x-tries": 29})
        await publisher.publish([marker])
        (letter,) = await stage.history.dead_letters(1)
    assert letter["body"] == marker.body
    tries = [m.headers["x-tries"] for m in again.heard if m.body["execution_id"] == execution_id]
    assert tries == list(range(1, len(tries) + 1))
    assert len(tries) <= seen
    stats = await stage.stats("hold")
    assert (stats["total_completed"], stats["active_count"]) == (2, 0)


async def test_an_offer_before_its_row_is_tried_again_and_runs_once(stage: Stage) -> None:
    execution_id = await next_id(stage)
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=WORKER_RETRY) as again,
    ):
        await publisher.publish([offer(execution_id)])
        await again.until(lambda: len(again.heard) == 1, "a try without a row")
        # Nothing but the early offer leads to a worker: the executor's own goes to a pool that nobody serves.
        await stage.put("elsewhere", pool="nobody", entrypoint="tests.e2e.actions:noop")
        assert await stage.submit("elsewhere", parameters={"number": 7}) == execution_id
        assert await stage.ended(execution_id) == ["completed"]
    assert (await stage.get(execution_id))["result"] == 7
    assert await stage.attempts(execution_id) == [(1, "completed")]


@pytest.mark.parametrize(
    ("unknown", "exchange"),
    [(completion, EXECUTOR_RETRY), (offer, WORKER_RETRY)],
    ids=["completion", "offer"],
)
async def test_what_speaks_of_nothing_is_tried_so_often_and_no_more_and_kept_as_a_dead_letter(
    stage: Stage, unknown: Any, exchange: str
) -> None:
    message: Outgoing = unknown(NOTHING, headers={"x-tries": 28})
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=exchange) as again,
    ):
        sent_at = await stage.history.value("SELECT clock_timestamp()")
        await publisher.publish([message])
        # Others flow on meanwhile.
        ids = [await stage.submit("noop") for _ in range(20)]
        assert await stage.ended(*ids, deadline_seconds=10) == ["completed"] * 20
        (letter,) = await stage.history.dead_letters(1)
        took = (await stage.history.value("SELECT clock_timestamp()") - sent_at).total_seconds()
    assert [m.headers["x-tries"] for m in again.heard if m.body["execution_id"] == NOTHING] == [29, 30]
    assert took >= 2
    assert (letter["code"], letter["tries"]) == ("unknown_execution", 30)
    assert "30 tries" in letter["error"]
    found = (letter["body"], letter["message_id"], letter["type"])
    assert found == (message.body, message.message_id, message.type)


async def test_a_count_of_tries_that_a_stranger_made_up_buys_no_more_of_them(stage: Stage) -> None:
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=EXECUTOR_RETRY) as again,
    ):
        await publisher.publish([completion(NOTHING + 1, headers={"x-tries": -1_000_000})])
        await again.until(lambda: len(again.heard) > 0, "a try")
    assert again.heard[0].headers["x-tries"] == 1


async def test_a_completion_of_an_attempt_that_is_over_changes_nothing(stage: Stage) -> None:
    retry = {"max_attempts": 2, "delay": "0s"}
    await stage.put("twice", max_concurrent=1, retry=retry, entrypoint="tests.e2e.actions:scripted")
    execution_id = await stage.submit("twice", parameters={"steps": ["FAIL", "HANG"]})

    async def second_runs() -> bool:
        return await stage.attempts(execution_id) != [] and await stage.status(execution_id) == "running"

    await until(second_runs, "the second attempt")
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(
            [completion(execution_id)] * 10 + [completion(NOTHING, headers={"x-tries": 30})]
        )
        await stage.history.dead_letters(1)
    assert await stage.status(execution_id) == "running"
    assert (await stage.stats("twice"))["active_count"] == 1
    await stage.cancel(execution_id)
    assert await stage.ended(execution_id) == ["cancelled"]


async def test_a_flood_of_completions_of_nothing_goes_round_in_bounded_number_and_is_kept_with_the_reason(
    stage: Stage,
) -> None:
    count = 3000
    flood = [completion(NOTHING + n, headers={"x-tries": 27}) for n in range(count)]
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=EXECUTOR_RETRY) as again,
    ):
        await publisher.publish(flood)
        assert await stage.ended(await stage.submit("noop")) == ["completed"]
        stored = "SELECT count(*) FROM dead_letter WHERE message_id = ANY ($1) AND code = 'unknown_execution'"

        async def all_are_stored() -> bool:
            ids = [message.message_id for message in flood]
            return int(await stage.history.value(stored, ids)) == count

        await until(all_are_stored, "all are dead letters")
        await stage.history.value("DELETE FROM dead_letter")
        assert len(again.heard) < count


async def test_an_early_completion_that_does_not_go_round_in_a_flood_is_told_when_its_attempt_ends(
    stage: Stage,
) -> None:
    execution_id = await stage.submit("hold")
    await stage.stands(execution_id, "running")
    early = [completion(execution_id, headers={"x-tries": 29}) for _ in range(1000)]
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish(early)
    behind = await stage.submit("noop")
    assert await stage.ended(behind) == ["completed"]
    await stage.cancel(execution_id)
    assert await stage.ended(execution_id) == ["cancelled"]
    assert (await stage.stats("hold"))["active_count"] == 0
