"""Gates after the queue: units, order, priority, turns, rates, and what other changes do to them."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.proof.gates.twin import CLOSED, Tables, found
from tests.support.gates import put_resource, route
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, accepted, blocked, in_turn, request
from turnstile.common.action_definition import ActionDefinition, UseDefinition
from turnstile.common.domain.states import Status

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


async def resource(protocol: Protocol, name: str, capacity: int, *, rank: int = 1, **fields: Any) -> int:
    """Create a resource; returns the id of its gate."""
    await put_resource(protocol.database, name, capacity, rank=rank, **fields)
    gate_id: int = await protocol.connection.fetchval("SELECT id FROM gate WHERE name = $1", name)
    return gate_id


async def define(protocol: Protocol, ref: str, *, limit: int | None = None, **gates: Any) -> None:
    """Define an action and its gates."""
    await protocol.put(ref, max_concurrent=limit, submitter_keys=True)
    await redefine(protocol, ref, **gates)


async def redefine(
    protocol: Protocol,
    ref: str,
    *,
    uses: dict[str, int] | None = None,
    total: int | None = None,
    fair: bool = False,
    rate: tuple[int | None, float | None] = (None, None),
) -> None:
    async with protocol.transaction():
        await route(
            protocol.database, ref, *sorted((uses or {}).items()), max_concurrent_total=total, fair=fair,
            rate_starts=rate[0], rate_per_seconds=rate[1],
        )  # fmt: skip


async def capacity(protocol: Protocol, gate_id: int, units: int | None) -> None:
    await protocol.connection.execute(
        "UPDATE gate SET capacity = $2, returning_from = $3 WHERE id = $1", gate_id, units, CLOSED
    )
    await advance(protocol)


async def submit(protocol: Protocol, *refs: str, key: str | None = None, priority: int = 3) -> list[int]:
    """Admit one request for each action, together, and grant; returns the ids."""
    verdicts, grants = await protocol.admit(
        *(request(ref, concurrency_key=key, priority=priority) for ref in refs)
    )
    await grant(protocol, grants.more_queue_ids)
    return [accepted(verdict).execution_id for verdict in verdicts]


async def grant(protocol: Protocol, queue_ids: Sequence[int] | None) -> None:
    if queue_ids:
        await protocol.row("SELECT * FROM turnstile.grant_slots($1)", list(queue_ids))


async def settle(protocol: Protocol, *ids: int, worker: str = WORKER) -> list[int]:
    """Run these granted executions to their end and settle them; returns what was granted."""
    await protocol.run(*ids, worker=worker)
    return (await protocol.settle(*((i, 1) for i in ids))).granted


async def advance(protocol: Protocol) -> list[int]:
    """Let return what has to and pass what can; returns what was granted."""
    granted: list[int] = []
    while True:
        row = await protocol.row("SELECT * FROM turnstile.advance_gates(2)")
        granted += [item["execution_id"] for item in row["granted"] or ()]
        await grant(protocol, row["more_queue_ids"])
        if not row["remaining"]:
            Tables(await found(protocol.connection)).check()
            return granted


async def pause(protocol: Protocol, gate_id: int, paused: bool = True) -> None:
    await protocol.connection.execute(
        "UPDATE gate SET paused = $2, returning_from = CASE WHEN $2 THEN $3 ELSE returning_from END"
        " WHERE id = $1",
        gate_id,
        paused,
        CLOSED,
    )


async def later(protocol: Protocol, seconds: float) -> list[int]:
    """Let time pass for the rates; returns what was granted."""
    await protocol.connection.execute(
        "UPDATE rate_start SET granted_at = granted_at - make_interval(secs => $1)", seconds
    )
    row = await protocol.row("SELECT * FROM turnstile.pass_rates()")
    return [item["execution_id"] for item in row["granted"] or ()]


async def held_units(protocol: Protocol, name: str) -> int:
    held: int = await protocol.connection.fetchval(
        "SELECT held FROM turnstile.current_gate WHERE kind = 'resource' AND name = $1", name
    )
    return held


async def test_an_execution_takes_all_its_units(protocol: Protocol) -> None:
    await resource(protocol, "cad", 3)
    await define(protocol, "a", uses={"cad": 2})
    first, second = await submit(protocol, "a", "a")
    assert await protocol.held() == [first]
    assert await held_units(protocol, "cad") == 2
    assert await settle(protocol, first) == [second]
    assert await settle(protocol, second) == []
    assert await held_units(protocol, "cad") == 0


async def test_a_light_execution_does_not_pass_a_heavy_one_that_waits_before_it(protocol: Protocol) -> None:
    await resource(protocol, "cad", 2)
    await define(protocol, "light", uses={"cad": 1})
    await define(protocol, "heavy", uses={"cad": 2})
    first, heavy, last = await submit(protocol, "light", "heavy", "light")
    assert await protocol.held() == [first]
    assert await settle(protocol, first) == [heavy]
    assert await settle(protocol, heavy) == [last]


async def test_a_more_urgent_execution_is_first_at_a_resource(protocol: Protocol) -> None:
    await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    (first,) = await submit(protocol, "a")
    (waiting,) = await submit(protocol, "a")
    (urgent,) = await submit(protocol, "a", priority=1)
    assert await settle(protocol, first) == [urgent]
    assert await settle(protocol, urgent) == [waiting]


async def test_keys_take_turns_by_their_weights_at_a_fair_total(protocol: Protocol) -> None:
    await define(protocol, "a", total=1, fair=True)
    await protocol.connection.execute(
        "INSERT INTO key_override (action_id, concurrency_key, weight) SELECT id, '7', 2 FROM action"
    )
    sevens = await submit(protocol, *["a"] * 5, key="7")
    await submit(protocol, *["a"] * 3, key="8")
    order = await protocol.held()
    while len(order) < 7:
        order += await settle(protocol, order[-1])
    assert ["7" if i in sevens else "8" for i in order] == ["7", "8", "7", "7", "8", "7", "7"]


async def test_a_rate_allows_its_starts_in_any_window(protocol: Protocol) -> None:
    await define(protocol, "a", rate=(2, 3000.0))
    ids = await submit(protocol, "a")
    assert await protocol.held() == ids
    assert await later(protocol, 1000) == []
    ids += await submit(protocol, "a", "a", "a", "a")
    assert await protocol.held() == ids[:2]
    assert await later(protocol, 1900) == []
    assert await later(protocol, 200) == [ids[2]], "only the first start has left the window"
    assert await later(protocol, 800) == []
    assert await later(protocol, 200) == [ids[3]]
    assert await later(protocol, 10_000) == [ids[4]]


async def test_starts_that_return_to_a_rate_are_granted_although_another_action_waits(
    protocol: Protocol,
) -> None:
    """An action that arrives at the virtual time is found beside one whose next turn is later."""
    await define(protocol, "a", rate=(1, 3000.0))
    await define(protocol, "b", rate=(1, 3000.0))
    first, second = await submit(protocol, "a", "a")
    (other,) = await submit(protocol, "b")
    assert await protocol.held() == [first, other]
    assert await later(protocol, 3001) == [second]


async def test_a_rate_that_is_used_up_by_a_neighbour_of_a_neighbour_is_not_exceeded(
    protocol: Protocol,
) -> None:
    """A decision locks every rate that an execution in its list may need."""
    cad = await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    await define(protocol, "b", uses={"cad": 1}, rate=(1, 3000.0))
    await define(protocol, "z", rate=(1, 3000.0))
    rated = await protocol.column("SELECT id FROM gate WHERE kind <> 'resource'")
    locked = await protocol.connection.fetchval("SELECT turnstile.neighbouring_gates($1)", [cad])
    assert {cad, *rated} == set(locked)


async def test_what_waits_for_a_paused_resource_gives_its_other_units_back(protocol: Protocol) -> None:
    await resource(protocol, "cad", 1)
    api = await resource(protocol, "api", 1, rank=2)
    await define(protocol, "both", uses={"cad": 1, "api": 1})
    await define(protocol, "one", uses={"api": 1})
    await define(protocol, "neighbour", uses={"cad": 1})
    (running,) = await submit(protocol, "one")
    waiting, neighbour = await submit(protocol, "both", "neighbour")
    assert await protocol.held() == [running]
    await pause(protocol, api)
    assert await advance(protocol) == [neighbour]
    assert await settle(protocol, running) == []
    assert await settle(protocol, neighbour) == []
    await pause(protocol, api, paused=False)
    await grant(protocol, await protocol.column("SELECT * FROM turnstile.queues_behind($1, 10)", api))
    assert await protocol.held() == [waiting]


RETURNED = "SELECT returned_at FROM gate_return WHERE execution_id = $1"
FIRST_STAY = """
SELECT gates -> 0 ->> 'gate' AS gate, (gates -> 0 ->> 'arrived_at')::timestamptz AS arrived_at,
       (gates -> 0 ->> 'passed_at')::timestamptz AS passed_at, created_at, queued_at
FROM execution WHERE id = $1
"""


async def one_that_waits_at_cad(protocol: Protocol) -> tuple[int, int, int]:
    """Define `a`, which takes all of the resource `cad`; return its gate, what runs and what waits there."""
    cad = await resource(protocol, "cad", 2, rank=2)
    await define(protocol, "a", uses={"cad": 2})
    running, waiting = await submit(protocol, "a", "a")
    assert await protocol.held() == [running]
    return cad, running, waiting


async def pass_again(protocol: Protocol, cad: int) -> None:
    await pause(protocol, cad, paused=False)
    await grant(protocol, await protocol.column("SELECT * FROM turnstile.queues_behind($1, 10)", cad))


async def in_queue(protocol: Protocol) -> list[int]:
    return await protocol.column(
        "SELECT turnstile.id_of_place(place) FROM waiting WHERE queue_id IS NULL ORDER BY place"
    )


@pytest.mark.parametrize("why", ["a pause", "a lower capacity", "another route"])
async def test_the_history_has_the_instant_of_a_return_to_the_queue(protocol: Protocol, why: str) -> None:
    cad, running, waiting = await one_that_waits_at_cad(protocol)
    assert await in_queue(protocol) == []
    before = await protocol.connection.fetchval("SELECT clock_timestamp()")
    if why == "a pause":
        await pause(protocol, cad)
    elif why == "a lower capacity":
        await capacity(protocol, cad, 1)
    else:
        await resource(protocol, "first", 1, rank=1)
        await redefine(protocol, "a", uses={"cad": 2, "first": 1})
    await advance(protocol)
    after = await protocol.connection.fetchval("SELECT clock_timestamp()")
    # On its new route it has passed the queue again.
    assert await in_queue(protocol) == ([] if why == "another route" else [waiting])
    await capacity(protocol, cad, 2)
    await pass_again(protocol, cad)
    assert await in_queue(protocol) == []
    assert await settle(protocol, running) == [waiting]
    await settle(protocol, waiting)
    returned_at = await protocol.connection.fetchval(RETURNED, waiting)
    assert before < returned_at < after
    stay = await protocol.row(FIRST_STAY, waiting)
    assert (stay["gate"], stay["arrived_at"]) == ("queue", returned_at)
    assert stay["arrived_at"] < stay["passed_at"]
    assert stay["queued_at"] == stay["created_at"] < returned_at
    never_returned = await protocol.row(FIRST_STAY, running)
    assert never_returned["arrived_at"] == never_returned["created_at"]
    assert await protocol.column("SELECT execution_id FROM gate_return") == [waiting]


async def test_of_two_returns_the_last_instant_is_in_the_history(protocol: Protocol) -> None:
    cad, running, waiting = await one_that_waits_at_cad(protocol)
    returned_at = []
    for _ in range(2):
        await pause(protocol, cad)
        await advance(protocol)
        assert await in_queue(protocol) == [waiting]
        returned_at.append(await protocol.connection.fetchval(RETURNED, waiting))
        await pass_again(protocol, cad)
        assert await in_queue(protocol) == []
    assert await settle(protocol, running) == [waiting]
    await settle(protocol, waiting)
    assert returned_at[0] < returned_at[1]
    assert (await protocol.row(FIRST_STAY, waiting))["arrived_at"] == returned_at[1]


async def test_a_retry_arrives_in_its_queue_after_an_earlier_return(protocol: Protocol) -> None:
    cad, running, waiting = await one_that_waits_at_cad(protocol)
    await pause(protocol, cad)
    await advance(protocol)
    await pass_again(protocol, cad)
    assert await settle(protocol, running) == [waiting]
    assert await protocol.claim_verdicts(waiting) == ["claimed"]
    await protocol.finish(waiting, status=Status.FAILED, retry_delay_seconds=0.0)
    await protocol.settle((waiting, 1))
    await protocol.wake_due()
    await grant(protocol, await protocol.column("SELECT id FROM action_queue"))
    assert await protocol.held() == [waiting]
    await protocol.run(waiting, attempt=2)
    await protocol.settle((waiting, 2))
    stay = await protocol.row(FIRST_STAY, waiting)
    assert stay["arrived_at"] == stay["queued_at"]
    assert stay["queued_at"] > await protocol.connection.fetchval(RETURNED, waiting)


async def test_an_execution_that_is_cancelled_after_its_return_has_arrived_with_it(
    protocol: Protocol,
) -> None:
    cad, _, waiting = await one_that_waits_at_cad(protocol)
    await pause(protocol, cad)
    await advance(protocol)
    await protocol.cancel(waiting)
    stay = await protocol.row(FIRST_STAY, waiting)
    assert stay["arrived_at"] == await protocol.connection.fetchval(RETURNED, waiting)
    assert (stay["gate"], stay["passed_at"]) == ("queue", None)


async def test_executions_before_a_closed_resource_return_too(protocol: Protocol) -> None:
    """They wait at another gate of the route than the one that was closed."""
    await resource(protocol, "cad", 1)
    api = await resource(protocol, "api", 2, rank=2)
    await define(protocol, "both", limit=5, uses={"cad": 1, "api": 2})
    first, waiting = await submit(protocol, "both", "both")
    assert await protocol.held() == [first]
    await protocol.connection.execute(
        "UPDATE gate SET capacity = 1, returning_from = $2 WHERE id = $1", api, CLOSED
    )
    await advance(protocol)
    assert (await protocol.queue("both"))["held"] == 1
    assert (await protocol.queue("both"))["depth"] == 1
    assert await settle(protocol, first) == []
    assert await protocol.waiting() == [waiting]


async def serve(protocol: Protocol, worker: str, *refs: str) -> None:
    """Let this worker, which serves these actions, be the only one of them, and count."""
    await protocol.register(worker, serves=refs)
    await count_workers(protocol)


async def leave(protocol: Protocol, *workers: str) -> None:
    for worker in workers:
        await protocol.connection.execute("SELECT turnstile.sign_off($1)", worker)
    await count_workers(protocol)


async def count_workers(protocol: Protocol) -> None:
    row = await protocol.row("SELECT * FROM turnstile.refresh_pools(NULL, '{}', '{}', true)")
    await grant(protocol, row["more_queue_ids"])


async def test_what_loses_its_workers_gives_its_units_back_and_passes_nothing(protocol: Protocol) -> None:
    await resource(protocol, "api", 1)
    await resource(protocol, "cad", 1, rank=2)
    await define(protocol, "both", uses={"api": 1, "cad": 1})
    await define(protocol, "cad-only", uses={"cad": 1})
    await define(protocol, "api-only", uses={"api": 1})
    await leave(protocol, WORKER, OTHER_WORKER)
    await serve(protocol, "first", "cad-only", "api-only")
    await serve(protocol, "second", "both")
    running, waiting, neighbour = await submit(protocol, "cad-only", "both", "api-only")
    assert await protocol.held() == [running]
    assert await held_units(protocol, "api") == 1
    await leave(protocol, "second")
    assert await settle(protocol, running, worker="first") == [], "nothing passes before it has returned"
    assert await advance(protocol) == [neighbour]
    assert await protocol.waiting() == [waiting]
    assert (await protocol.queue("both"))["held"] == 0
    await serve(protocol, "third", "both")
    assert await settle(protocol, neighbour, worker="first") == [waiting]


async def test_an_action_whose_gate_is_held_counts_as_served_until_the_next_check(
    protocol: Protocol, other: Protocol
) -> None:
    """Otherwise its executions would stay at the gate, and no check would find them again."""
    cad = await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    await leave(protocol, OTHER_WORKER)
    first, second = await submit(protocol, "a", "a")
    async with other.transaction():
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE", cad)
        await leave(protocol, WORKER)
        assert await protocol.column("SELECT served FROM action") == [True]
    await count_workers(protocol)
    assert await protocol.column("SELECT served FROM action") == [False]
    await advance(protocol)
    assert await protocol.waiting() == [second]
    assert first in await protocol.held()
    assert (await protocol.queue("a"))["held"] == 1


async def test_everything_in_the_list_of_a_flow_returns_although_some_of_it_comes_back(
    protocol: Protocol,
) -> None:
    await resource(protocol, "cad", 9)
    await resource(protocol, "api", 1, rank=2, order="fair")
    await define(protocol, "a", uses={"cad": 1, "api": 1})
    ids = await submit(protocol, *["a"] * 8)
    await redefine(protocol, "a", uses={"api": 1})
    await advance(protocol)
    assert await held_units(protocol, "cad") == 1, "only what runs has units of the old route"
    assert await protocol.held() == ids[:1]


async def test_cancelled_executions_keep_their_units_until_they_are_settled(protocol: Protocol) -> None:
    await resource(protocol, "cad", 1)
    await resource(protocol, "api", 1, rank=2)
    await define(protocol, "one", uses={"api": 1})
    await define(protocol, "both", limit=1, uses={"cad": 1, "api": 1})
    await define(protocol, "cad-only", uses={"cad": 1})
    running, cancelled, waiting = await submit(protocol, "one", "both", "cad-only")
    await protocol.cancel(cancelled)
    assert await held_units(protocol, "cad") == 1
    assert (await protocol.queue("both"))["held"] == 1
    assert (await protocol.settle((cancelled, 0))).granted == [waiting]
    assert await held_units(protocol, "cad") == 1
    assert (await protocol.queue("both"))["held"] == 0
    assert await settle(protocol, running, waiting) == []


async def test_a_settle_beside_a_cancelled_heavy_execution_is_not_refused(protocol: Protocol) -> None:
    """What could pass next needs a gate that the settle does not lock: it waits for the other settle."""
    await resource(protocol, "r1", 2, rank=1)
    await resource(protocol, "r2", 2, rank=2)
    await resource(protocol, "r3", 1, rank=3)
    await define(protocol, "d", uses={"r1": 1})
    await define(protocol, "a", uses={"r1": 1, "r2": 1})
    await define(protocol, "b", uses={"r2": 2, "r3": 1})
    await define(protocol, "e", uses={"r2": 1, "r3": 1})
    d, _, heavy, light = await submit(protocol, "d", "a", "b", "e")
    await protocol.cancel(heavy)
    assert await settle(protocol, d) == []
    assert (await protocol.settle((heavy, 0))).granted == [light]


async def test_a_reclaimed_execution_gives_its_units_back_and_is_first_again(protocol: Protocol) -> None:
    await resource(protocol, "cad", 2)
    await define(protocol, "a", uses={"cad": 2})
    first, second = await submit(protocol, "a", "a")
    assert await protocol.claim_verdicts(first) == ["claimed"]
    await protocol.lose_lease()
    reclaimed = await protocol.reclaim()
    assert reclaimed.returned == [first]
    assert reclaimed.granted == [first]
    assert await held_units(protocol, "cad") == 2
    assert second in await protocol.waiting()


async def test_a_deleted_action_leaves_no_unit_held(protocol: Protocol) -> None:
    await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    await define(protocol, "b", uses={"cad": 1})
    (running,) = await submit(protocol, "b")
    (waiting,) = await submit(protocol, "a")
    row = await protocol.row("SELECT * FROM turnstile.delete_action('a', 10, NULL, NULL)")
    assert row["deleted"]
    await protocol.settle((waiting, 0))
    await advance(protocol)
    assert await settle(protocol, running) == []
    assert await held_units(protocol, "cad") == 0
    Tables(await found(protocol.connection)).check()


async def test_two_settles_at_once_share_the_units_of_a_resource(protocol: Protocol, other: Protocol) -> None:
    """The second waits for the gate, and sees what the first has granted."""
    await resource(protocol, "cad", 2)
    await define(protocol, "a", uses={"cad": 1})
    await define(protocol, "b", uses={"cad": 1})
    await define(protocol, "heavy", uses={"cad": 2})
    a, b, heavy, last = await submit(protocol, "a", "b", "heavy", "a")
    await protocol.run(a, b)
    first, second = await in_turn(protocol, other, protocol.settle((a, 1)), other.settle((b, 1)))
    assert first.granted == []
    assert second.granted == [heavy]
    assert last in await protocol.waiting()
    Tables(await found(protocol.connection)).check()


async def test_a_settle_and_a_cancel_at_once_free_each_unit_once(protocol: Protocol, other: Protocol) -> None:
    await resource(protocol, "cad", 2)
    await resource(protocol, "api", 1, rank=2)
    await define(protocol, "a", uses={"cad": 1, "api": 1})
    first, waiting = await submit(protocol, "a", "a")
    await protocol.run(first)
    freed, _ = await in_turn(protocol, other, protocol.settle((first, 1)), other.cancel(waiting))
    assert freed.granted == [waiting], "the settle came first"
    await protocol.settle((waiting, 1))
    assert await held_units(protocol, "cad") == 0
    Tables(await found(protocol.connection)).check()


async def test_an_arrival_while_the_turns_of_idle_flows_are_deleted_has_a_turn(
    protocol: Protocol, other: Protocol
) -> None:
    await define(protocol, "a", total=10, fair=True)
    await submit(protocol, "a", key="7")
    await submit(protocol, "a", "a", key="8")
    tidied = protocol.row("SELECT turnstile.tidy_gates(100)")
    _, (last,) = await in_turn(protocol, other, tidied, submit(other, "a", key="7"))
    assert last in await protocol.held()


async def test_what_runs_on_an_old_route_can_be_handed_back_and_cancelled(protocol: Protocol) -> None:
    await resource(protocol, "cad", 2)
    await resource(protocol, "api", 2)
    await define(protocol, "a", uses={"cad": 1})
    first, second = await submit(protocol, "a", "a")
    assert await protocol.claim_verdicts(first) == ["claimed"]
    await redefine(protocol, "a", uses={"api": 1})
    assert await protocol.hand_back(first) == {first}
    await protocol.cancel(second)
    await protocol.settle((second, 1))
    assert await held_units(protocol, "cad") == 0


async def test_a_gate_that_a_session_holds_delays_the_return_from_no_other(
    protocol: Protocol, other: Protocol
) -> None:
    held = await resource(protocol, "held", 1, rank=2)
    free = await resource(protocol, "free", 1, rank=2)
    await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"held": 1})
    await define(protocol, "b", uses={"cad": 1, "free": 1})
    await define(protocol, "c", uses={"free": 1})
    running, _, _ = await submit(protocol, "c", "a", "b")
    await pause(protocol, held)
    await pause(protocol, free)
    assert await held_units(protocol, "cad") == 1
    async with other.transaction():
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE", held)
        for _ in range(6):
            await protocol.row("SELECT * FROM turnstile.advance_gates(10)")
        assert await held_units(protocol, "cad") == 0
    assert running in await protocol.held()


async def test_changed_actions_lock_all_their_queues_before_the_first_gate(
    protocol: Protocol, other: Protocol
) -> None:
    """Otherwise a settle, which holds a queue and needs a gate, and the change wait for each other."""
    cad = await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    await define(protocol, "b", uses={"cad": 1})
    await submit(protocol, "a", "b")
    definitions = [
        ActionDefinition(ref="a", submitter_keys=True, uses=()),
        ActionDefinition(
            ref="b", submitter_keys=True, uses=(UseDefinition(resource="cad"),), max_concurrent=2
        ),
    ]
    async with other.transaction():
        await other.connection.execute(
            "SELECT FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = 'b' FOR UPDATE OF q"
        )
        put = protocol.queue_manager.protocol.put_actions(definitions, None)
        changing = await blocked(protocol, other, put)
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE NOWAIT", cad)
    await changing
    limits = await protocol.column("SELECT max_concurrent FROM action_queue ORDER BY id")
    assert limits == [None, 2]


async def test_a_changed_rank_locks_the_gates_of_its_routes_in_their_order(
    protocol: Protocol, other: Protocol
) -> None:
    first = await resource(protocol, "first", 1, rank=1)
    then = await resource(protocol, "then", 1, rank=2)
    await define(protocol, "a", uses={"first": 1, "then": 1})
    definition = {"name": "then", "capacity": 1, "rank": 3, "fair": False, "paused": False}
    async with other.transaction():
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE", first)
        put = protocol.column("SELECT turnstile.put_resource($1)", json.dumps(definition))
        changing = await blocked(protocol, other, put)
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE NOWAIT", then)
    await changing


async def test_after_the_clock_was_set_back_a_rate_has_its_next_start_in_time(protocol: Protocol) -> None:
    await define(protocol, "a", rate=(1, 3000.0))
    first, second = await submit(protocol, "a", "a")
    await protocol.connection.execute("UPDATE rate_start SET granted_at = granted_at + interval '1 day'")
    await protocol.column("SELECT turnstile.clamp_future_instants(false)")
    assert await protocol.held() == [first]
    assert await later(protocol, 2990) == []
    assert await later(protocol, 11) == [second]


async def test_after_the_clock_was_set_back_no_execution_returns_in_the_future(protocol: Protocol) -> None:
    cad, running, waiting = await one_that_waits_at_cad(protocol)
    await pause(protocol, cad)
    await advance(protocol)
    await protocol.connection.execute("UPDATE gate_return SET returned_at = returned_at + interval '1 day'")
    # Reads all of them: only after a jump.
    assert await protocol.column("SELECT turnstile.clamp_future_instants(false)") == [0]
    assert await protocol.column("SELECT turnstile.clamp_future_instants(true)") == [1]
    assert await protocol.column("SELECT turnstile.clamp_future_instants(true)") == [0]
    await pass_again(protocol, cad)
    assert await settle(protocol, running) == [waiting]
    await settle(protocol, waiting)
    stay = await protocol.row(FIRST_STAY, waiting)
    assert stay["created_at"] < stay["arrived_at"] < stay["passed_at"]


async def test_starts_that_have_left_their_window_are_deleted(protocol: Protocol) -> None:
    """However many a rate allows: each decision looks for the oldest that counts."""
    await define(protocol, "a", rate=(100, 3000.0))
    await submit(protocol, "a", "a", "a")
    await protocol.connection.execute(
        "UPDATE rate_start SET granted_at = granted_at - interval '1 hour' WHERE number < 3"
    )
    # It has just left its window: a decision that began before still counts it.
    await protocol.connection.execute(
        "UPDATE rate_start SET granted_at = granted_at - make_interval(secs => 30) -"
        " (SELECT make_interval(secs => rate_per_seconds) FROM gate WHERE rate_starts IS NOT NULL)"
        " WHERE number = 3"
    )
    await protocol.row("SELECT turnstile.tidy_gates(100)")
    assert await protocol.column("SELECT number FROM rate_start") == [3]


async def test_starts_are_counted_as_a_reader_of_the_whole_window_would(protocol: Protocol) -> None:
    """At every moment, below the limit and at it, with equal instants, and after some were deleted."""
    starts, per, chance = 7, 10.0, random.Random(5)
    await define(protocol, "a", rate=(starts, per))
    (gate_id,) = await protocol.column("SELECT id FROM gate WHERE rate_starts IS NOT NULL")
    for taken in (0, 1, 6, 7, 8, 30):
        seconds = [0.0]
        for _ in range(taken):
            seconds.append(seconds[-1] + chance.choice((0, 0, 0.5, 1, 4, 12)))
        seconds = seconds[1:]
        deleted = chance.randrange(taken // 3 + 1)
        async with protocol.undone():
            await protocol.connection.execute("UPDATE gate_state SET starts_taken = $1", taken)
            await protocol.connection.execute(
                "INSERT INTO rate_start SELECT $1, number, $4::timestamptz + make_interval(secs => second)"
                " FROM unnest($2::float8[]) WITH ORDINALITY s(second, number) WHERE number > $3",
                gate_id, seconds, deleted, EPOCH,
            )  # fmt: skip
            for moment in (-1.0, *(second + after for second in seconds for after in (0, 9.75, 10.25))):
                counted = [
                    second
                    for number, second in enumerate(seconds, 1)
                    if number > max(taken - starts, deleted) and second > moment - per
                ]
                row = await protocol.row(
                    "SELECT l.starts, extract(epoch FROM l.next_at - $2::timestamptz)::float8 AS next_at"
                    " FROM turnstile.starts_left(ARRAY[$1::bigint],"
                    " $2::timestamptz + make_interval(secs => $3)) l",
                    gate_id, EPOCH, moment,
                )  # fmt: skip
                assert row["starts"] == starts - len(counted), (seconds, deleted, moment)
                assert row["next_at"] == (counted[0] + per if counted else None)


async def test_starts_are_in_the_order_of_time_also_if_the_clock_was_set_back(protocol: Protocol) -> None:
    """Otherwise a binary search does not find the first start that counts."""
    await define(protocol, "a", rate=(3, 3000.0))
    await submit(protocol, "a")
    await protocol.connection.execute("UPDATE rate_start SET granted_at = granted_at + interval '1 day'")
    await submit(protocol, "a")
    ordered = "SELECT granted_at >= lag(granted_at) OVER (ORDER BY number) FROM rate_start ORDER BY number"
    assert await protocol.column(ordered) == [None, True]
    await protocol.column("SELECT turnstile.clamp_future_instants(false)")
    assert await protocol.column("SELECT max(granted_at) <= clock_timestamp() FROM rate_start") == [True]
    await submit(protocol, "a")
    assert await protocol.column(ordered) == [None, True, True]


async def test_a_resource_changes_its_order_after_other_priorities_waited(protocol: Protocol) -> None:
    """By arrival a gate keeps bounds of order keys, which are no bounds of start tags."""
    await resource(protocol, "cad", 1)
    await define(protocol, "a", uses={"cad": 1})
    for order in ("arrival", "fair", "arrival", "fair"):
        await put_resource(protocol.database, "cad", 1, rank=1, order=order)
        ids = [(await submit(protocol, "a", priority=4))[0] for _ in range(4)]
        for one, following in pairwise(ids):
            assert await settle(protocol, one) == [following]
        await settle(protocol, ids[-1])
        Tables(await found(protocol.connection)).check()


async def test_a_total_changes_its_order_after_other_priorities_waited(protocol: Protocol) -> None:
    for fair in (False, True, False, True):
        if await protocol.column("SELECT 1 FROM action"):
            await redefine(protocol, "a", total=1, fair=fair)
        else:
            await define(protocol, "a", total=1, fair=fair)
        ids = [(await submit(protocol, "a", priority=4))[0] for _ in range(4)]
        for one, following in pairwise(ids):
            assert await settle(protocol, one) == [following]
        await settle(protocol, ids[-1])


async def test_a_gate_that_an_action_is_about_to_pass_is_not_deleted(
    protocol: Protocol, other: Protocol
) -> None:
    await define(protocol, "a", rate=(1, 3000.0))
    await redefine(protocol, "a")
    missing = "SELECT unnest(route) FROM action EXCEPT SELECT id FROM gate"
    async with protocol.transaction():
        await redefine(protocol, "a", rate=(1, 3000.0))
        await other.row("SELECT turnstile.tidy_gates(100)")
    assert await protocol.column(missing) == []
    await redefine(protocol, "a")
    tidied = protocol.row("SELECT turnstile.tidy_gates(100)")
    await in_turn(protocol, other, tidied, redefine(other, "a", rate=(1, 3000.0)))
    assert await protocol.column(missing) == []
    assert len(await protocol.column("SELECT unnest(route) FROM action")) == 2


async def test_wrong_counters_of_a_gate_are_repaired_under_its_lock(
    protocol: Protocol, other: Protocol
) -> None:
    cad = await resource(protocol, "cad", 2)
    await define(protocol, "a", uses={"cad": 1})
    first, second, third = await submit(protocol, "a", "a", "a")
    assert await protocol.column("SELECT gate_id FROM turnstile.repair_gates()") == []
    await protocol.connection.execute(
        "UPDATE gate_state SET held = 1, depth = 5, granted_capacity = NULL WHERE gate_id = $1", cad
    )
    async with other.transaction():
        await other.connection.execute("SELECT FROM gate WHERE id = $1 FOR UPDATE", cad)
        assert await protocol.column("SELECT gate_id FROM turnstile.repair_gates()") == []
    assert await protocol.column("SELECT gate FROM turnstile.repair_gates()") == ["resource cad"]
    assert await advance(protocol) == []
    assert await protocol.held() == [first, second]
    assert await settle(protocol, first) == [third]
