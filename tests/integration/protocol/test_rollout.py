"""A changed limit comes to many queues slice by slice: none is locked for long, and none is forgotten."""

import pytest

from tests.support.protocol import Protocol, connected

_KEYS = (
    "INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)"
    " SELECT a.id, lpad(n::text, 6, '0'), a.max_concurrent FROM action a, generate_series(1, $1::int) n"
)
_LIMITS = "SELECT max_concurrent, count(*) FROM action_queue GROUP BY 1 ORDER BY 1"


async def limits(protocol: Protocol) -> dict[int | None, int]:
    return {row[0]: row[1] for row in await protocol.connection.fetch(_LIMITS)}


@pytest.fixture
async def many(protocol: Protocol) -> Protocol:
    """An action with 2,500 queues of limit 1."""
    await protocol.put(max_concurrent=1, concurrency_key="/key")
    await protocol.connection.execute(_KEYS, 2500)
    return protocol


async def test_a_change_takes_the_first_slice_at_once_and_the_rest_slice_by_slice(many: Protocol) -> None:
    await many.put(max_concurrent=2, concurrency_key="/key")
    assert await limits(many) == {1: 1500, 2: 1000}
    assert await many.drifted_queues(limit=5000) == []
    assert await many.roll_out() == [(1000, 1000, [])]
    assert await many.roll_out() == [(500, 500, [])]
    assert await many.roll_out() == []
    assert await limits(many) == {2: 2500}
    assert await many.drifted_queues(limit=5000) == []


async def test_a_queue_that_is_born_meanwhile_has_the_new_limit(many: Protocol) -> None:
    await many.put(max_concurrent=2, concurrency_key="/key")
    first = await many.submit(count=3, parameters={"key": "new"})
    assert await many.statuses(*first) == ["scheduled", "scheduled", "queued"]
    # Until its turn comes, the limit in force for a queue is the one of its row (P1).
    last = await many.submit(count=3, parameters={"key": "002500"})
    assert await many.statuses(*last) == ["scheduled", "queued", "queued"]
    await many.roll_out()
    assert [granted for *_, granted in await many.roll_out()] == [last[1:2]]


async def test_a_second_change_begins_again_and_the_first_is_forgotten(many: Protocol) -> None:
    await many.put(max_concurrent=2, concurrency_key="/key")
    await many.roll_out()
    await many.put(max_concurrent=3, concurrency_key="/key")
    while await many.roll_out():
        pass
    assert await limits(many) == {3: 2500}


async def test_a_held_queue_is_passed_by_and_changed_when_it_is_free(
    many: Protocol, database_url: str
) -> None:
    async with connected(database_url) as stranger, stranger.transaction():
        await stranger.connection.execute("SELECT FROM action_queue ORDER BY id LIMIT 1 FOR UPDATE")
        await many.put(max_concurrent=2, concurrency_key="/key")
        for _ in range(3):
            await many.roll_out()
        assert await limits(many) == {1: 1, 2: 2499}
        assert await many.drifted_queues(limit=5000) == []
    assert await many.roll_out() == [(1, 1, [])]
    assert await many.roll_out() == []
    assert await limits(many) == {2: 2500}
