"""The settings of a pool: a pause, the order, and weights (P7, P12, P14); who changed them and when."""

from typing import Any

import asyncpg
import pytest

from tests.integration.protocol.test_pool import drop_workers, end, granted, pass_rates, pool, refresh
from tests.support.gates import put_resource
from tests.support.protocol import Protocol, ids_in
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import PoolDefinition
from turnstile.executor.slot_grants import QueueManager


async def set_pool(protocol: Protocol, name: str = "default", **fields: Any) -> list[int]:
    """Change a pool as a user does: other fields get their defaults. Return what that granted."""
    grants = await QueueManager(protocol.database, lock_timeout_seconds=None).put_pool(
        PoolDefinition(name=name, **fields), changed_by=Caller("alice")
    )
    return ids_in(grants)


@pytest.fixture
async def working(protocol: Protocol) -> Protocol:
    """One worker with four worker slots, and a lead of one; the actions `a` and `b`."""
    await drop_workers(protocol)
    await protocol.register("first")
    await protocol.put("a")
    await protocol.put("b")
    await refresh(protocol)
    return protocol


async def starts(protocol: Protocol, count: int) -> list[int]:
    """Let the oldest granted execution end, one after another; return what that granted, in order."""
    started: list[int] = []
    for _ in range(count):
        started += await end(protocol, (await granted(protocol))[0])
    return started


async def at_the_list(protocol: Protocol, **counts: int) -> list[list[int]]:
    """Let so many executions of new actions pass the resource `cad`, up to the list of the pool."""
    await put_resource(protocol.database, "cad", 1)
    ids = []
    for ref, count in counts.items():
        await protocol.put(ref, uses=[{"resource": "cad"}])
        ids.append(await protocol.submit(ref, count))
        for _ in range(count):
            await protocol.grant((await protocol.queue(ref))["id"])
    assert await protocol.column("SELECT sum(depth)::int FROM turnstile.current_queue") == [0]
    await put_resource(protocol.database, "cad", 100)
    await protocol.row("SELECT * FROM turnstile.advance_gates(1000)")
    return ids


async def test_a_paused_pool_grants_nothing_and_a_resumed_one_at_once(working: Protocol) -> None:
    running = await working.submit("a", 2)
    assert await set_pool(working, paused=True) == []
    waiting = await working.submit("a", 3) + await working.submit("b", 2)
    assert await end(working, *running) == []
    # Nor after another worker has joined and is counted.
    await working.register("second")
    assert await refresh(working) == []
    assert await working.grantable_queues() == []
    assert await pool(working) == (0, 2)
    assert sorted(await set_pool(working)) == waiting
    assert await pool(working) == (5, 0)


async def test_a_paused_pool_delays_no_other_pool(working: Protocol) -> None:
    """Executions with units return to their queues, so they hold none that others could use."""
    await working.register("second", pools=["gpu"])
    (ids,) = await at_the_list(working, gated=8)
    await working.put("other", pool="gpu", uses=[{"resource": "cad"}])
    await refresh(working)
    held = "SELECT held FROM turnstile.current_gate WHERE name = 'cad'"
    assert await working.column(held) == [8]
    assert await set_pool(working, paused=True) == []
    assert await working.column(held) == [5]
    other = await working.submit("other", 1)
    await working.grant((await working.queue("other"))["id"])
    assert await granted(working) == ids[:5] + other
    await end(working, *ids[:5])
    assert await pass_rates(working) == []
    assert sorted(await set_pool(working)) == ids[5:]


async def test_a_paused_pool_keeps_no_resource_from_another_pool(working: Protocol) -> None:
    """What waits at a resource before the paused pool returns to its queue, so that others may pass."""
    await working.register("second", pools=["gpu"])
    await put_resource(working.database, "cad", 1)
    await working.put("gated", uses=[{"resource": "cad"}], max_concurrent_total=9, submitter_keys=True)
    await working.put("other", pool="gpu", uses=[{"resource": "cad"}])
    await refresh(working)
    first, waiting = await working.submit("gated", 2, concurrency_key="k")
    other = await working.submit("other", 1)
    for ref in ("gated", "other"):
        for queue_id in await working.column(
            "SELECT q.id FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = $1", ref
        ):
            await working.grant(queue_id)
    assert await granted(working) == [first]
    assert await set_pool(working, paused=True) == []
    held = "SELECT held FROM turnstile.current_gate WHERE kind = 'action'"
    assert await working.column(held) == [1], "only what runs has a unit of the total"
    assert await end(working, first) == other
    await end(working, *other)
    assert await set_pool(working) == [waiting]


async def test_what_a_list_allows_in_advance_stops_with_the_pool(working: Protocol) -> None:
    """The list of a pool may take one worker slot before a plain action; not while the pool is paused."""
    await working.put("rated", rate={"starts": 1, "per": "1h"})
    await working.submit("a", 8)
    await set_pool(working, paused=True)
    await working.submit("rated", 1)
    await working.grant((await working.queue("rated"))["id"])
    await working.connection.execute("UPDATE gate SET paused = false, returning_from = NULL")
    await working.grant((await working.queue("rated"))["id"])
    await end(working, *(await granted(working)))
    assert await pass_rates(working) == []
    # The list was created while the pool was paused: the watchdog corrects it.
    await working.column("SELECT turnstile.tidy_gates(100)")
    assert await working.column("SELECT paused FROM gate WHERE kind = 'pool'") == [True]


async def test_actions_start_by_their_weights(working: Protocol) -> None:
    await set_pool(working, weights={"b": 3})
    await working.submit("a", 5)
    first = await working.submit("a", 12)
    second = await working.submit("b", 12)
    started = await starts(working, 8)
    assert [one in second for one in started].count(True) == 6
    assert started == sorted(started, key=started.index)
    assert [one for one in started if one in first] == first[:2]
    # A changed weight is in force from the next start on.
    await set_pool(working, weights={"a": 3})
    started = await starts(working, 8)
    assert [one in first for one in started].count(True) >= 5


async def test_by_arrival_the_oldest_starts_first_and_priority_before_it(working: Protocol) -> None:
    await set_pool(working, order="arrival", weights={"b": 16})
    await working.submit("a", 5)
    waiting = [*await working.submit("a", 3), *await working.submit("b", 2), *await working.submit("a", 2)]
    urgent = await working.submit("b", 1, priority=1)
    assert await starts(working, 4) == urgent + waiting[:3]
    # What returns to its queue keeps its place.
    assert await working.claim_verdicts(*waiting[:2], worker="first") == ["claimed"] * 2
    await working.register("second")
    await working.lose_lease("first")
    assert sorted((await working.reclaim()).granted) == waiting[:2]
    await refresh(working)
    assert await starts(working, 4) == waiting[3:]


async def test_a_change_of_the_order_acts_at_once_and_loses_no_turn(working: Protocol) -> None:
    await working.submit("a", 5)
    many, few = await working.submit("a", 8), await working.submit("b", 8)
    urgent = await working.submit("b", 1, priority=2)
    assert await starts(working, 5) == [urgent[0], many[0], few[0], many[1], few[1]]
    assert await set_pool(working, order="arrival") == []
    assert await starts(working, 3) == many[2:5]
    assert await set_pool(working) == []
    assert await starts(working, 4) == [many[5], few[2], many[6], few[3]]
    # Nothing is left behind when the pool has become empty.
    while await granted(working):
        await end(working, *(await granted(working)))
    assert await working.waiting() == []
    assert await pool(working) == (0, 0)


async def test_the_list_of_a_pool_has_its_order_and_weights_too(working: Protocol) -> None:
    """Executions that have passed a resource wait in a list of their own, together with plain ones."""
    await set_pool(working, weights={"h": 2})
    first, second = await at_the_list(working, g=12, h=12)
    passed: list[int] = []
    for _ in range(6):
        passed += await end(working, (await granted(working))[0]) + await pass_rates(working)
    assert [one in second for one in passed].count(True) == 4
    await set_pool(working, order="arrival")
    left = [one for one in await working.waiting() if one in first]
    for _ in range(3):
        assert await end(working, (await granted(working))[-1]) + await pass_rates(working) == [left.pop(0)]
    assert await set_pool(working, weights={"h": 2}) == []
    passed = []
    for _ in range(3):
        passed += await end(working, (await granted(working))[0]) + await pass_rates(working)
    assert [one in second for one in passed].count(True) == 2


async def test_settings_are_recorded_with_their_author_and_kept(working: Protocol) -> None:
    await set_pool(working, "gpu", weights={"a": 2})
    await set_pool(working, "gpu", weights={"a": 2})
    await set_pool(working, "gpu", weights={"a": 2}, paused=True)
    await set_pool(working, "gpu", order="arrival")
    rows = await working.connection.fetch(
        "SELECT actor, verb, subject, before::text, after::text FROM audit_log"
        " WHERE subject_kind = 'pool' ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        ("alice", "created", "gpu", "{}", '{"order": "fair", "paused": false, "weights": {"a": 2}}'),
        ("alice", "paused", "gpu", '{"paused": false}', '{"paused": true}'),
        (
            "alice",
            "changed",
            "gpu",
            '{"order": "fair", "paused": true, "weights": {"a": 2}}',
            '{"order": "arrival", "paused": false, "weights": {}}',
        ),
    ]
    prune = "SELECT turnstile.prune_pools(100)"
    assert await working.column(prune) == [0]
    await set_pool(working, "gpu")
    assert await working.column(prune) == [1]


async def test_the_schema_refuses_weights_that_no_turn_can_have(working: Protocol) -> None:
    for weights in ("[]", '{"a": 17}', '{"a": 1.5}', '{"a": "x"}'):
        with pytest.raises(asyncpg.CheckViolationError):
            await working.connection.execute("UPDATE worker_pool SET weights = $1::jsonb", weights)
