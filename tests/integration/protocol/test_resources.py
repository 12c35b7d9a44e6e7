"""Resources, uses, rates and the settings of keys: what is stored, refused and recorded."""

import json
from typing import Any

import asyncpg
import pytest

from tests.support.gates import put_resource
from tests.support.protocol import Protocol, blocked
from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import KeySettings

WITH_GATES: dict[str, Any] = {
    "concurrency_key": "/who",
    "max_concurrent": 1,
    "max_concurrent_total": 3,
    "order": "fair",
    "rate": {"starts": 10, "per": "1s"},
    "uses": ["api", {"resource": "cad", "units": 2, "weight": 3}],
    "priority_min": 2,
}


async def set_key(protocol: Protocol, key: str, **fields: Any) -> list[int]:
    """Change the settings of a key of action `a`; returns the granted ids."""
    settings = KeySettings(**fields) if fields else None
    _, grants = await protocol.queue_manager.set_key("a", key, settings, changed_by=Caller("alice"))
    return [grant.execution_id for grant in grants.granted]


async def refusal(protocol: Protocol, ref: str = "a", **fields: Any) -> str:
    with pytest.raises(Refusal) as refused:
        await protocol.put(ref, **fields)
    assert refused.value.code is Code.INVALID_MESSAGE
    return refused.value.message


async def limits(protocol: Protocol) -> dict[str, int | None]:
    rows = await protocol.connection.fetch("SELECT concurrency_key, max_concurrent FROM action_queue")
    return {row["concurrency_key"]: row["max_concurrent"] for row in rows}


async def submit(protocol: Protocol, ref: str = "a", count: int = 1) -> list[int]:
    """Admit requests and let them pass their gates, as the executor does after each admission."""
    ids = await protocol.submit(ref, count)
    await protocol.grant(*await protocol.column("SELECT id FROM action_queue"))
    return ids


async def route(protocol: Protocol, ref: str = "a") -> list[str]:
    rows = await protocol.connection.fetch(
        "SELECT concat_ws(' ', g.kind, CASE WHEN g.kind = 'resource' THEN g.name END, r.units) AS gate"
        " FROM action a CROSS JOIN unnest(a.route, a.route_units) WITH ORDINALITY r(id, units, rank)"
        " JOIN gate g ON g.id = r.id WHERE a.ref = $1 ORDER BY r.rank",
        ref,
    )
    return [row["gate"] for row in rows]


async def test_an_action_passes_its_total_its_resources_by_rank_and_its_pool(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=10, rank=1)
    await put_resource(protocol.database, "api", capacity=5)
    await protocol.put(**WITH_GATES)
    assert await route(protocol) == ["action 1", "resource cad 2", "resource api 1", "pool 1"]
    await put_resource(protocol.database, "api", capacity=5, rank=2)
    await put_resource(protocol.database, "cad", capacity=10, rank=3)
    assert await route(protocol) == ["action 1", "resource api 1", "resource cad 2", "pool 1"]
    await protocol.put(concurrency_key="/who", max_concurrent=1)
    assert await route(protocol) == []


async def test_an_earlier_version_changes_an_action_and_keeps_its_gates(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=10)
    await put_resource(protocol.database, "api")
    await protocol.put(**WITH_GATES)
    passed = await route(protocol)
    before = await protocol.row("SELECT * FROM action")
    columns = action_columns(ActionDefinition(ref="a", concurrency_key="/who", max_concurrent=7))
    unknown = {"max_concurrent_total", "fair", "rate_starts", "rate_per_seconds", "uses", "priority_min"}
    earlier = {name: value for name, value in columns.items() if name not in unknown}
    await protocol.connection.fetch("SELECT turnstile.put_actions($1)", json.dumps([earlier]))
    after = await protocol.row("SELECT * FROM action")
    assert after["max_concurrent"] == 7
    assert {name: after[name] for name in unknown} == {name: before[name] for name in unknown}
    assert await route(protocol) == passed


async def test_a_worker_of_an_earlier_version_registers_an_action_without_gates(protocol: Protocol) -> None:
    columns = action_columns(ActionDefinition(ref="a"))
    for name in ("max_concurrent_total", "fair", "rate_starts", "rate_per_seconds", "uses", "priority_min"):
        del columns[name]
    await protocol.connection.fetch("SELECT turnstile.register_actions($1)", json.dumps([columns]))
    row = await protocol.row("SELECT * FROM action")
    assert (row["uses"], row["priority_min"], row["fair"], row["route"]) == ("[]", 1, False, None)


async def test_a_use_that_fits_no_resource_is_refused_with_the_remedy(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=3, rank=1)
    await put_resource(protocol.database, "gpu", capacity=3, rank=1)
    assert "there is no resource 'api'; create it: executor resources put api" in await refusal(
        protocol, uses=["cad", "api"]
    )
    assert "4 units are more than the capacity 3 of 'cad'" in await refusal(
        protocol, uses=[{"resource": "cad", "units": 4}]
    )
    assert "the resources 'cad' and 'gpu' have the same rank 1" in await refusal(
        protocol, uses=["gpu", "cad"]
    )
    assert await protocol.connection.fetchval("SELECT count(*) FROM action") == 0
    await protocol.put(uses=["cad"])
    await put_resource(protocol.database, "gpu", capacity=3, rank=2)
    await protocol.put(uses=["cad", "gpu"])
    with pytest.raises(Refusal, match=r"rank: the action 'a' uses both: .* the same rank 1"):
        await put_resource(protocol.database, "gpu", capacity=3, rank=1)


async def test_what_was_accepted_stays_accepted_with_a_lower_capacity(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=3)
    uses = [{"resource": "cad", "units": 2}]
    await protocol.put(uses=uses)
    await put_resource(protocol.database, "cad", capacity=1)
    await protocol.put(uses=uses, paused=True)
    await refusal(protocol, "b", uses=uses)
    await refusal(protocol, "a", uses=[{"resource": "cad", "units": 3}])


async def test_a_total_needs_keys_also_if_an_earlier_version_takes_them_away(protocol: Protocol) -> None:
    await protocol.put(concurrency_key="/who", max_concurrent_total=3)
    columns = action_columns(ActionDefinition(ref="a"))
    del columns["max_concurrent_total"], columns["fair"]
    with pytest.raises(asyncpg.CheckViolationError, match="max_concurrent_total: an action without"):
        await protocol.connection.fetch("SELECT turnstile.put_actions($1)", json.dumps([columns]))


async def test_code_registers_what_is_missing_and_waits_for_its_resources(protocol: Protocol) -> None:
    wanted = ActionDefinition.model_validate({"ref": "a", **WITH_GATES})
    with pytest.raises(asyncpg.CheckViolationError, match="there is no resource 'api'; create it"):
        await protocol.register_actions(wanted)
    await put_resource(protocol.database, "cad", capacity=2)
    await put_resource(protocol.database, "api")
    assert await protocol.register_actions(wanted) == []
    assert await protocol.register_actions(wanted) == []
    (difference,) = await protocol.register_actions(ActionDefinition(ref="a", concurrency_key="/who"))
    assert set(difference.fields) >= {"uses", "rate", "order", "max_concurrent_total"}
    assert len(await route(protocol)) == 4


# --- resources


async def test_a_resource_in_use_is_not_deleted(protocol: Protocol) -> None:
    await protocol.register()
    await put_resource(protocol.database, "cad", capacity=1)
    await protocol.put(uses=["cad"])
    (running,) = await submit(protocol)
    assert await protocol.claim_verdicts(running) == ["claimed"]
    deletion = await protocol.executor.delete_resource("cad", changed_by=Caller("alice"))
    assert deletion is not None
    assert (deletion.deleted, deletion.used_by, deletion.users) == (False, ["a"], 1)
    await protocol.put()
    deletion = await protocol.executor.delete_resource("cad", changed_by=Caller("alice"))
    assert deletion is not None
    assert (deletion.deleted, deletion.users, deletion.held) == (False, 0, 1)
    await protocol.finish(running)
    await protocol.settle((running, 1))
    deletion = await protocol.executor.delete_resource("cad", changed_by=Caller("alice"))
    assert deletion is not None
    assert deletion.deleted
    # The list of the pool is deleted when no action needs it.
    await protocol.connection.execute("SELECT turnstile.tidy_gates(10)")
    assert await protocol.connection.fetchval("SELECT count(*) FROM gate") == 0
    assert await protocol.connection.fetchval("SELECT count(*) FROM gate_state") == 0
    assert await protocol.executor.delete_resource("cad", changed_by=Caller("alice")) is None


async def test_a_deletion_waits_for_a_definition_that_names_the_resource(
    protocol: Protocol, other: Protocol
) -> None:
    await put_resource(protocol.database, "cad", capacity=1)
    async with protocol.transaction():
        await protocol.put(uses=["cad"])
        statement = other.executor.delete_resource("cad", changed_by=Caller("alice"))
        deleting = await blocked(other, protocol, statement)
    deletion = await deleting
    assert deletion is not None
    assert not deletion.deleted


async def test_every_change_of_a_resource_is_recorded_with_its_author(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=1)
    await put_resource(protocol.database, "cad", capacity=1)
    await put_resource(protocol.database, "cad", capacity=2)
    await put_resource(protocol.database, "cad", capacity=2, paused=True)
    await put_resource(protocol.database, "cad", capacity=2)
    await put_resource(protocol.database, "cad", capacity=2, order="fair", rate={"starts": 3, "per": "1m"})
    await protocol.executor.delete_resource("cad", changed_by=Caller("bob"))
    rows = await protocol.connection.fetch("SELECT * FROM resource_change ORDER BY id")
    assert [(row["change"], row["changed_by"]) for row in rows] == [
        ("created", "alice"), ("limit_changed", "alice"), ("paused", "alice"), ("resumed", "alice"),
        ("changed", "alice"), ("deleted", "bob"),
    ]  # fmt: skip
    assert json.loads(rows[1]["new"]) == {"capacity": 2}
    assert json.loads(rows[4]["new"]) == {"order": "fair", "rate.starts": 3, "rate.per": 60}


async def test_a_paused_resource_lets_nothing_start_until_it_is_resumed(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=1)
    await protocol.put(uses=["cad"])
    first, second, third = await submit(protocol, count=3)
    assert await protocol.held() == [first]
    await put_resource(protocol.database, "cad", capacity=1, paused=True)
    await put_resource(protocol.database, "cad", capacity=2, paused=True)
    assert await protocol.held() == [first]
    await put_resource(protocol.database, "cad", capacity=2)
    assert await protocol.held() == [first, second]
    await put_resource(protocol.database, "cad", capacity=3)
    assert await protocol.held() == [first, second, third]


async def test_a_paused_action_keeps_no_units_from_its_neighbours(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=1, rank=1)
    await put_resource(protocol.database, "api", capacity=1, rank=2)
    await protocol.register()
    await protocol.put("blocker", uses=["api"])
    (blocker,) = await submit(protocol, "blocker")
    await protocol.put(uses=["cad", "api"])
    (waiting,) = await submit(protocol)
    await protocol.put("b", uses=["cad"])
    (neighbour,) = await submit(protocol, "b")
    assert await protocol.held() == [blocker]
    await protocol.put(uses=["cad", "api"], paused=True)
    assert await protocol.held() == [blocker, neighbour]
    assert await protocol.status(waiting) == "queued"


async def test_the_order_of_a_resource_changes_only_while_nothing_waits(protocol: Protocol) -> None:
    await put_resource(protocol.database, "cad", capacity=1)
    await protocol.put(uses=["cad"])
    ids = await submit(protocol, count=2)
    with pytest.raises(Refusal, match="pause it, change the order, resume it") as refused:
        await put_resource(protocol.database, "cad", capacity=1, order="fair")
    assert refused.value.code is Code.IN_USE
    await put_resource(protocol.database, "cad", capacity=1, paused=True)
    await put_resource(protocol.database, "cad", capacity=1, paused=True, order="fair")
    await put_resource(protocol.database, "cad", capacity=2, order="fair")
    assert await protocol.held() == ids


# --- keys


async def test_the_limit_of_a_key_holds_for_its_queue_at_once_and_for_later_queues(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    ids = [(await protocol.submit(parameters={"who": who}))[0] for who in "xxxy"]
    assert await protocol.held() == [ids[0], ids[3]]
    assert await set_key(protocol, "x", max_concurrent=2) == [ids[1]]
    await set_key(protocol, "z", max_concurrent=None)
    await protocol.submit(parameters={"who": "z"})
    assert await limits(protocol) == {"x": 2, "y": 1, "z": None}
    assert await set_key(protocol, "x", max_concurrent=3, weight=5) == [ids[2]]
    await set_key(protocol, "x")
    assert await limits(protocol) == {"x": 1, "y": 1, "z": None}


async def test_a_change_of_the_action_leaves_the_limits_of_its_keys(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    await set_key(protocol, "x", max_concurrent=5)
    await set_key(protocol, "y", weight=2)
    for who in "xyz":
        await protocol.submit(parameters={"who": who})
    await protocol.put(max_concurrent=2, concurrency_key="/who", paused=True)
    assert await limits(protocol) == {"x": 5, "y": 2, "z": 2}
    rows = await protocol.connection.fetch("SELECT paused FROM action_queue")
    assert all(row["paused"] for row in rows)


async def test_the_limit_of_a_key_is_no_drift_and_a_lost_one_is_repaired(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    await set_key(protocol, "x", max_concurrent=5)
    await protocol.submit(parameters={"who": "x"})
    queue_id = (await protocol.queue(key="x"))["id"]
    drifted = "SELECT queue_ids FROM turnstile.drifted_queues(0, 100)"
    assert await protocol.connection.fetchval(drifted) is None
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    assert await protocol.connection.fetchval(drifted) == [queue_id]
    await protocol.connection.fetch("SELECT * FROM turnstile.repair_queues($1)", [queue_id])
    assert await limits(protocol) == {"x": 5}


async def test_a_queue_that_another_session_holds_gets_its_key_s_limit_later(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    await protocol.submit(parameters={"who": "x"})
    queue_id = (await protocol.queue(key="x"))["id"]
    async with other.transaction():
        await other.connection.execute("SELECT 1 FROM action_queue WHERE id = $1 FOR UPDATE", queue_id)
        await set_key(protocol, "x", max_concurrent=2)
        assert await limits(protocol) == {"x": 1}
    (action_id,) = await protocol.queue_manager.protocol.rollouts_due(10)
    await protocol.queue_manager.protocol.roll_out(action_id, 10)
    assert await limits(protocol) == {"x": 2}


async def test_the_settings_of_keys_are_recorded_and_go_with_their_action(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who")
    await set_key(protocol, "x", max_concurrent=2)
    await set_key(protocol, "x", max_concurrent=2)
    await set_key(protocol, "x", max_concurrent=2, weight=3)
    await set_key(protocol, "x")
    rows = await protocol.connection.fetch(
        "SELECT * FROM action_change WHERE change <> 'created' ORDER BY id"
    )
    seen = [(row["changed_by"], json.loads(row["old"]), json.loads(row["new"])) for row in rows]
    two, three = ({"keys.x": {"max_concurrent": 2, "weight": weight}} for weight in (1, 3))
    assert seen == [("alice", {}, two), ("alice", two, three), ("alice", three, {})]
    await set_key(protocol, "x", weight=4)
    await protocol.executor.delete_action("a", cancel_max=0, reason="", changed_by=Caller("alice"))
    assert await protocol.connection.fetchval("SELECT count(*) FROM key_override") == 0
