"""grant: free slots go to the heads of the lines, never more than the limit (P1, P2)."""

import asyncpg
import pytest

from tests.integration.executor.reading import ids_in
from tests.support.protocol import Protocol


async def drained(protocol: Protocol, limit: int | None, count: int) -> list[list[int]]:
    """Admit while nothing starts, then let everything run; returns what each step granted."""
    await protocol.put(max_concurrent=0)
    await protocol.submit(count=count)
    steps = [await protocol.put(max_concurrent=limit)]
    while steps[-1]:
        await protocol.run(*steps[-1])
        settled = await protocol.settle(*((i, 1) for i in steps[-1]))
        steps.append(settled.granted)
    return steps[:-1]


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_a_line_is_granted_in_the_order_of_ids_at_most_its_limit_at_once(
    protocol: Protocol, limit: int
) -> None:
    steps = await drained(protocol, limit, 20)
    granted = [i for step in steps for i in step]
    assert granted == sorted(granted)
    assert len(granted) == 20
    assert {len(step) for step in steps[:-1]} == {limit}


async def test_without_a_limit_all_start_at_once(protocol: Protocol) -> None:
    (step,) = await drained(protocol, None, 50)
    assert len(step) == 50


async def test_a_limit_of_zero_starts_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    await protocol.submit(count=3)
    queue = await protocol.queue()
    assert (await protocol.grant(queue["id"])).granted == []
    assert await protocol.held() == []
    assert queue["depth"] == 3


async def test_a_paused_queue_starts_nothing_and_goes_on_when_resumed(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2, paused=True)
    ids = await protocol.submit(count=3)
    assert (await protocol.grant((await protocol.queue())["id"])).granted == []
    assert await protocol.put(max_concurrent=2, paused=False) == ids[:2]


async def test_more_than_a_thousand_are_granted_page_by_page(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=2100)
    queue_id = (await protocol.queue())["id"]
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    pages = []
    more = [queue_id]
    while more:
        grants = await protocol.grant(*more)
        pages.append(ids_in(grants))
        more = [*grants.more_queue_ids]
    assert [len(page) for page in pages] == [1000, 1000, 100]
    assert [i for page in pages for i in page] == ids


async def test_only_the_queues_named_are_granted(protocol: Protocol) -> None:
    for ref in "ab":
        await protocol.put(ref, max_concurrent=0)
        await protocol.submit(ref, 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    grants = await protocol.grant((await protocol.queue("b"))["id"])
    assert [g.action_ref for g in grants.granted] == ["b"]
    assert (await protocol.grant()).granted == []
    assert (await protocol.grant(10**12)).granted == []


async def test_a_paused_queue_beside_a_running_one_starts_nothing(protocol: Protocol) -> None:
    for ref in "ab":
        await protocol.put(ref, max_concurrent=0)
        await protocol.submit(ref, 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    paused, running = [(await protocol.queue(ref))["id"] for ref in "ab"]
    await protocol.connection.execute("UPDATE action_queue SET paused = true WHERE id = $1", paused)
    grants = await protocol.grant(paused, running)
    assert [g.action_ref for g in grants.granted] == ["b"]


async def test_slots_under_a_limit_are_numbered_from_one_and_numbers_are_used_again(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=3)
    ids = await protocol.submit(count=6)
    assert await protocol.slot_numbers() == [1, 2, 3]
    await protocol.run(ids[1])
    await protocol.settle((ids[1], 1))
    rows = await protocol.connection.fetch("SELECT execution_id, slot_number FROM slot")
    assert {row[0]: row[1] for row in rows} == {ids[0]: 1, ids[2]: 3, ids[3]: 2}


async def test_slots_without_a_limit_have_no_number_but_count_when_one_is_set(protocol: Protocol) -> None:
    await protocol.put()
    first, second = await protocol.submit(count=2)
    assert await protocol.slot_numbers() == [None, None]
    await protocol.put(max_concurrent=3)
    await protocol.submit(count=3)
    assert sorted(n or 0 for n in await protocol.slot_numbers()) == [0, 0, 1]
    await protocol.run(first, second)
    assert len((await protocol.settle((first, 1), (second, 1))).granted) == 2
    assert await protocol.slot_numbers() == [1, 2, 3]


async def test_two_slots_of_one_number_in_one_queue_are_refused_by_the_schema(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.submit(count=2)
    with pytest.raises(asyncpg.UniqueViolationError, match="uq_slot_number"):
        await protocol.connection.execute(
            "INSERT INTO slot (execution_id, queue_id, slot_number, attempt, granted_at, offered_at)"
            " SELECT execution_id + 1, queue_id, slot_number, 1, now(), now() FROM slot"
        )


async def test_each_grant_is_a_new_attempt_with_its_times(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    granted = await protocol.execution(one)
    assert (granted["status"], granted["attempt"], granted["worker_id"]) == ("scheduled", 1, None)
    await protocol.claim(one)
    await protocol.hand_back(one)
    grants = await protocol.grant((await protocol.queue())["id"])
    assert [(g.execution_id, g.attempt) for g in grants.granted] == [(one, 2)]
    assert (await protocol.execution(one))["scheduled_at"] > granted["scheduled_at"]


async def test_the_trace_and_the_pool_travel_with_the_grant(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, pool="gpu")
    await protocol.submit()
    await protocol.connection.execute("UPDATE execution SET traceparent = '00-trace'")
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    (grant,) = (await protocol.grant((await protocol.queue())["id"])).granted
    assert (grant.pool, grant.traceparent) == ("gpu", "00-trace")
