"""Deliveries are born with the settle, once for each end, for those who asked."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.webhooks.deliveries import URL, ended, states
from tests.support.protocol import Protocol
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


async def test_a_delivery_is_born_with_the_settle_once_and_only_for_those_who_asked(
    protocol: Protocol,
) -> None:
    asked, not_asked = await protocol.submit(callback_url=URL), await protocol.submit()
    await protocol.run(*asked, *not_asked)
    assert await states(protocol) == {}
    messages = [(ExecutionId(i), Attempt(1), Status.COMPLETED) for i in (*asked, *not_asked)]
    settled = await protocol.queue_manager.settle(messages)
    assert settled.callbacks == 1
    assert await states(protocol) == {asked[0]: "pending"}
    again = await protocol.queue_manager.settle(messages)
    assert again.callbacks == 0
    (row,) = await protocol.connection.fetch("SELECT * FROM webhook_delivery")
    assert (row["url"], row["origin"], row["attempts"]) == (URL, "https://example.org", 0)


async def test_the_action_names_a_url_for_whoever_names_none(protocol: Protocol) -> None:
    await protocol.put("a", callback_url="https://action.example/")
    (of_action,) = await ended(protocol, url=None)
    (own,) = await ended(protocol)
    rows = await protocol.connection.fetch("SELECT execution_id, origin FROM webhook_delivery ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        (of_action, "https://action.example"),
        (own, "https://example.org"),
    ]


async def test_every_way_to_end_is_called_back_once(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    runs, in_line = await protocol.submit(count=2, callback_url=URL)
    (expires,) = await protocol.submit(callback_url=URL, ttl=0.001)
    later = datetime.now(UTC) + timedelta(days=1)
    (not_due,) = await protocol.submit(callback_url=URL, run_at=later)
    await protocol.cancel(in_line, not_due)
    await protocol.connection.execute("SELECT pg_sleep(0.01)")
    assert [move.execution_id for move in await protocol.expire_due()] == [expires]
    await protocol.run(runs)
    for _ in range(2):
        await protocol.settle((runs, 1), (in_line, 0), (expires, 0), (not_due, 0))
    assert await states(protocol) == dict.fromkeys((runs, in_line, expires, not_due), "pending")


async def test_an_attempt_that_is_tried_again_calls_nobody(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.claim(one)
    await protocol.finish(one, retry_delay_seconds=3600.0)
    await protocol.settle((one, 1))
    assert await states(protocol) == {}
    await protocol.cancel(one)
    await protocol.settle((one, 1))
    assert await states(protocol) == {one: "pending"}


async def test_a_url_that_is_none_keeps_no_slot_from_being_freed(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.connection.execute("UPDATE execution SET callback_url = 'nowhere'")
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).count == 1
    assert await states(protocol) == {one: "pending"}
