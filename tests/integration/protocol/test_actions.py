"""Definitions: a changed limit acts at once, a worker's declaration never does (P1, P2)."""

import pytest

from tests.support.protocol import Protocol
from turnstile.common.action_definition import ActionDefinition, RetryDefinition


async def test_a_lower_limit_ends_nothing_and_grants_nothing_until_fewer_run(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=10)
    ids = await protocol.submit(count=20)
    assert await protocol.put(max_concurrent=2) == []
    assert await protocol.held() == ids[:10]
    await protocol.run(*ids[:10])
    for n, one in enumerate(ids[:10], 1):
        granted = (await protocol.settle((one, 1))).granted
        assert len(granted) == (1 if n > 8 else 0)
    assert await protocol.held() == ids[10:12]


async def test_a_higher_limit_starts_the_heads_in_order_at_once(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=20)
    assert await protocol.put(max_concurrent=10) == ids[2:10]
    assert await protocol.put(max_concurrent=None) == ids[10:]


async def test_a_newcomer_does_not_overtake_the_line_when_a_slot_is_free(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=3)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    (newcomer,) = await protocol.submit()
    assert await protocol.held() == ids[:1]
    assert await protocol.status(newcomer) == "queued"


async def test_a_pause_starts_nothing_and_ends_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=5)
    assert await protocol.put(max_concurrent=2, paused=True) == []
    await protocol.run(*ids[:2])
    assert (await protocol.settle((ids[0], 1), (ids[1], 1))).granted == []
    (late,) = await protocol.submit()
    assert await protocol.status(late) == "queued"
    assert await protocol.put(max_concurrent=2) == ids[2:4]


async def test_a_limit_holds_for_each_line_of_the_action(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, concurrency_key="/who")
    for who in "xxxyyy":
        await protocol.submit(parameters={"who": who})
    granted = await protocol.put(max_concurrent=2, concurrency_key="/who")
    assert [(await protocol.execution(i))["concurrency_key"] for i in granted] == ["x", "x", "y", "y"]


async def test_a_line_born_after_a_change_has_the_new_limit(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    await protocol.submit(parameters={"who": "x"})
    await protocol.put(max_concurrent=5, paused=True, concurrency_key="/who")
    await protocol.submit(parameters={"who": "y"})
    queue = await protocol.queue(key="y")
    assert (queue["max_concurrent"], queue["paused"]) == (5, True)


async def test_many_are_stored_at_once_and_the_same_again_is_harmless(protocol: Protocol) -> None:
    definitions = [ActionDefinition(ref=ref, max_concurrent=n) for n, ref in enumerate("dcba")]
    for _ in range(2):
        await protocol.queue_manager.put_actions(definitions)
    rows = await protocol.connection.fetch("SELECT ref, max_concurrent FROM action ORDER BY ref")
    assert [tuple(row) for row in rows] == [("a", 3), ("b", 2), ("c", 1), ("d", 0)]
    await protocol.queue_manager.put_actions([])


@pytest.mark.parametrize("limit", [None, 0, 7])
async def test_a_worker_s_declaration_never_changes_a_limit_that_is_there(
    protocol: Protocol, limit: int | None
) -> None:
    await protocol.put(max_concurrent=limit, timeout=60)
    await protocol.submit()
    (difference,) = await protocol.register_actions(
        ActionDefinition(ref="a", max_concurrent=3, timeout=60), ActionDefinition(ref="new", max_concurrent=3)
    )
    assert (difference.ref, difference.fields) == ("a", ("max_concurrent",))
    assert (await protocol.queue())["max_concurrent"] == limit
    stored = await protocol.connection.fetch("SELECT ref, max_concurrent FROM action ORDER BY ref")
    assert [tuple(row) for row in stored] == [("a", limit), ("new", 3)]


async def test_declaring_what_is_there_is_no_difference(protocol: Protocol) -> None:
    definition = ActionDefinition(
        ref="a", max_concurrent=3, timeout=1.5, ttl=60, concurrency_key="/x/0",
        retry=RetryDefinition(max_attempts=3, delay=0.1, jitter=0.3), pool="gpu", max_queued=9,
    )  # fmt: skip
    assert await protocol.register_actions(definition) == []
    assert await protocol.register_actions(definition) == []
    assert await protocol.register_actions() == []


async def test_an_action_that_was_never_changed_was_stored_when_it_was_created(protocol: Protocol) -> None:
    await protocol.queue_manager.put_actions([ActionDefinition(ref=f"new.{number}") for number in range(500)])
    changed = "SELECT count(*) FROM action WHERE created_at <> updated_at"
    assert await protocol.connection.fetchval(changed) == 0
