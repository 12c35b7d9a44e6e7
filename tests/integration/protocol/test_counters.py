"""Counters that are off are found in one look and put right under the lock (P7, P10)."""

import asyncpg
import pytest

from tests.support.protocol import Protocol, connected


async def test_counters_in_order_raise_no_alarm(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.put("b", concurrency_key="/key")
    await protocol.submit(count=3)
    await protocol.submit("b", 2, parameters={"key": 1})
    assert await protocol.drifted_queues() == []


@pytest.mark.parametrize(
    "drift", ["depth = depth + 1", "depth = 0", "head_id = 10000000", "max_concurrent = 7", "paused = true"]
)
async def test_what_is_off_is_put_right_and_granted(protocol: Protocol, drift: str) -> None:
    await protocol.put(max_concurrent=1)
    one, two, three = await protocol.submit(count=3)
    queue_id = (await protocol.queue())["id"]
    await protocol.connection.execute(f"UPDATE action_queue SET {drift}")
    assert await protocol.drifted_queues() == [queue_id]
    assert await protocol.repair(queue_id) == ([queue_id], [])
    assert await protocol.drifted_queues() == []
    assert await protocol.repair(queue_id) == ([], [])
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).granted == [two]
    assert await protocol.line() == [three]


async def test_what_a_wrong_depth_held_up_starts_with_the_repair(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    one, two = await protocol.submit(count=2)
    await protocol.connection.execute("UPDATE action_queue SET depth = 0, max_concurrent = 1")
    await protocol.connection.execute("UPDATE action SET max_concurrent = 1")
    queue_id = (await protocol.queue())["id"]
    assert (await protocol.grant(queue_id)).granted == []
    assert await protocol.repair(queue_id) == ([queue_id], [one])
    assert await protocol.line() == [two]


async def test_the_recount_goes_on_where_it_left_off(protocol: Protocol) -> None:
    await protocol.put(concurrency_key="/key")
    for key in range(5):
        await protocol.submit(parameters={"key": key})
    await protocol.connection.execute("UPDATE action_queue SET depth = depth + 1")
    queue_ids = await protocol.column("SELECT id FROM action_queue ORDER BY id")
    assert await protocol.drifted_queues(limit=2) == queue_ids[:2]
    assert await protocol.drifted_queues(queue_ids[1], limit=2) == queue_ids[2:4]
    row = await protocol.connection.fetchrow("SELECT * FROM turnstile.drifted_queues($1, 2)", queue_ids[3])
    assert row is not None
    assert (row["queue_ids"], row["next_id"]) == (queue_ids[4:], 0)


async def test_a_recount_beside_an_open_admission_sees_no_drift(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put(max_concurrent=0)
    await protocol.submit(count=2)
    async with connected(database_url) as other, other.transaction():
        await other.submit(count=3)
        assert await protocol.drifted_queues() == []


async def test_a_queue_cannot_be_stored_with_a_negative_depth(protocol: Protocol) -> None:
    await protocol.put()
    await protocol.submit()
    with pytest.raises(asyncpg.CheckViolationError):
        await protocol.connection.execute("UPDATE action_queue SET depth = -1")
