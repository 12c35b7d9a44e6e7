"""The replay of gates reads what the protocol's statements store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.proof.history.event_log import install, read_events
from tests.proof.history.execution_rules import statuses_agree_with_rows
from tests.proof.history.recording import Bounds, PoolEvent, Recording, Step, WaitingEvent
from tests.proof.history.replay import gated_queues
from tests.proof.history.stored_gates import read_gates
from tests.support.gates import put_resource
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, connected
from turnstile.common.domain.states import Status
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import PoolDefinition
from turnstile.stress.check.passages import violations

ROUNDS: Final = 12
BOUNDS: Final = Bounds(idle_seconds=1.0, leak_seconds=1.0, reclaim_seconds=1.0, overlap_seconds=1.0)


async def test_the_stored_history_of_gates_breaks_no_rule_and_a_falsified_one_does(database_url: str) -> None:
    async with connected(database_url) as protocol:
        await put_resource(protocol.database, "cad", capacity=2, order="fair")
        await protocol.register()
        uses: list[dict[str, Any]] = [{"resource": "cad", "units": 1, "weight": 2}]
        fields = {"submitter_keys": True, "max_concurrent": 2, "max_concurrent_total": 3, "order": "fair"}
        await protocol.put("a", uses=uses, **fields)
        await protocol.put("b", uses=["cad"])
        for number in range(ROUNDS):
            await protocol.submit("a", concurrency_key=f"k{number % 2}")
            await protocol.submit("b")
        in_queue, at_gate = await protocol.submit("a", concurrency_key="k0"), await protocol.submit("b")
        for (ended,) in (in_queue, at_gate):
            await protocol.cancel(ended)
            await protocol.settle((ended, 0))
        await put_resource(protocol.database, "cad", capacity=1, order="fair")
        while ids := await protocol.held():
            await protocol.run(ids[0])
            await protocol.settle((ids[0], 1))
        history = await read_gates(protocol.connection, settling_ns=0)
    gates = {stay.gate for passer in history.passers for stay in passer.stays}
    assert gates == {"queue", "total", "resource cad"}
    assert len(history.passers) == 2 * ROUNDS + 2
    assert {passer.execution_id for passer in history.passers if not passer.stays} == {*in_queue, *at_gate}
    assert violations(history) == []

    last = max(history.passers, key=lambda passer: passer.stays[-1].passed_at if passer.stays else 0)
    longer = [passer._replace(completed_at=last.completed_at) for passer in history.passers]
    assert "P11" in {broken.rule for broken in violations(replace(history, passers=longer))}
    early = last.stays[-1]._replace(passed_at=last.stays[-1].arrived_at + 1)
    overtaking = last._replace(stays=(*last.stays[:-1], early), completed_at=early.passed_at)
    passers = [overtaking if passer == last else passer for passer in history.passers]
    assert violations(replace(history, passers=passers))


async def test_an_execution_that_returned_for_want_of_a_worker_has_not_waited_since_its_creation(
    database_url: str,
) -> None:
    async with connected(database_url) as protocol:
        await put_resource(protocol.database, "cad", capacity=1)
        await protocol.put("a", max_concurrent=3, uses=["cad"])
        await protocol.register()
        await count_workers(protocol)
        running, returning, staying = [(await protocol.submit("a"))[0] for _ in range(3)]
        await protocol.grant(*await protocol.column("SELECT id FROM action_queue"))
        assert await protocol.held() == [running]
        await protocol.connection.execute("SELECT turnstile.sign_off($1)", WORKER)
        await count_workers(protocol)
        # A worker comes back before all have returned.
        assert await protocol.row("SELECT * FROM turnstile.advance_gates(1)")
        in_queue = "SELECT turnstile.id_of_place(place) FROM waiting WHERE queue_id IS NULL"
        assert await protocol.column(in_queue) == [returning]
        await protocol.register(OTHER_WORKER)
        await count_workers(protocol)
        for one in (running, returning, staying):
            await protocol.run(one, worker=OTHER_WORKER)
            await protocol.settle((one, 1))
        history = await read_gates(protocol.connection, settling_ns=0)
        shown = await protocol.column(
            "SELECT gates -> 0 ->> 'arrived_at' = (to_jsonb(created_at) #>> '{}') FROM execution ORDER BY id"
        )
        kept = await protocol.column("SELECT execution_id FROM gate_return")
    assert violations(history) == []
    assert shown == [True, False, True]
    assert kept == [returning]
    # It precedes the other one from its return on.
    staying_passer = history.passers[staying - 1]
    late = history.passers[returning - 1].stays[0].arrived_at + 1
    overtaken = [
        p._replace(stays=(p.stays[0]._replace(passed_at=late), *p.stays[1:])) if p is staying_passer else p
        for p in history.passers
    ]
    assert [broken.rule for broken in violations(replace(history, passers=overtaken))] == ["P12"]
    # Without the instant of the return, the other one would seem to have overtaken it.
    forgotten = [
        p._replace(stays=(p.stays[0]._replace(arrived_at=p.created_at), *p.stays[1:]))
        for p in history.passers
    ]
    (broken,) = violations(replace(history, passers=forgotten))
    assert (broken.rule, broken.execution_id) == ("P12", staying)


async def test_an_execution_that_is_cancelled_before_its_retry_holds_nothing_meanwhile(
    database_url: str,
) -> None:
    async with connected(database_url) as protocol:
        await put_resource(protocol.database, "cad", capacity=1)
        await protocol.register()
        await protocol.put("a", uses=["cad"], retry={"max_attempts": 2})
        retried, next_one = [(await protocol.submit("a"))[0] for _ in range(2)]
        await protocol.grant(*await protocol.column("SELECT id FROM action_queue"))
        assert await protocol.claim_verdicts(retried) == ["claimed"]
        await protocol.finish(retried, status=Status.FAILED, retry_delay_seconds=60.0)
        assert (await protocol.settle_as((retried, 1, None))).granted == [next_one]
        await protocol.run(next_one)
        await protocol.settle((next_one, 1))
        await protocol.cancel(retried)
        history = await read_gates(protocol.connection, settling_ns=0)
    assert [len(passer.stays) for passer in history.passers] == [2, 2]
    assert violations(history) == []


async def count_workers(protocol: Protocol) -> None:
    await protocol.row("SELECT * FROM turnstile.refresh_pools(NULL, '{}', '{}', true)")


async def test_the_event_log_shows_queues_before_gates_and_how_long_changes_took(database_url: str) -> None:
    async with connected(database_url) as protocol:
        await install(protocol.connection)
        await put_resource(protocol.database, "cad", capacity=1)
        await protocol.register()
        await protocol.put("a", uses=["cad"])
        await protocol.put("plain", max_concurrent=1)
        for _ in range(3):
            await protocol.submit("a")
            await protocol.submit("plain")
        await put_resource(protocol.database, "cad", capacity=2)
        await set_pool(protocol, weights={"a": 2})
        while ids := await protocol.held():
            await protocol.run(ids[0])
            await protocol.settle((ids[0], 1))
        events = await read_events(protocol.connection)
        queues = await protocol.connection.fetch(
            "SELECT q.id FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.route IS NOT NULL"
        )
        took = await protocol.connection.fetch(
            "SELECT kind, committed_at - changed_at AS took FROM history.committed_change"
        )
    assert gated_queues(events) == {row["id"] for row in queues}
    recording = Recording(events=events, runs=[], published=[], submitted=[], booted_at=datetime.now(UTC))
    assert list(statuses_agree_with_rows(recording, BOUNDS)) == []
    # One that waits at the resource has left its queue only with its grant.
    left = [e for e in events if isinstance(e, WaitingEvent) and e.is_at_gate and e.step is Step.DELETE]
    without = replace(recording, events=[event for event in events if event is not left[0]])
    (found,) = statuses_agree_with_rows(without, BOUNDS)
    assert (found.promise, found.execution_id) == ("P3", left[0].execution_id)
    assert {row["kind"] for row in took} == {"action", "resource", "pool"}
    assert all(row["took"] >= timedelta() for row in took)


async def test_the_pauses_of_a_pool_are_logged_and_read(database_url: str) -> None:
    async with connected(database_url) as protocol:
        await set_pool(protocol, name="gpu", paused=True)
        await install(protocol.connection)
        await set_pool(protocol, name="gpu", paused=False)
        await set_pool(protocol, weights={"a": 2})
        await set_pool(protocol, weights={"a": 2}, paused=True)
        await set_pool(protocol, weights={"a": 3}, paused=True)
        logged = [e for e in await read_events(protocol.connection) if isinstance(e, PoolEvent)]
        pools = (await read_gates(protocol.connection)).definitions.pools
    paused_before = [("gpu", True), ("gpu", False)]
    assert [(event.name, event.paused) for event in logged] == [*paused_before, ("default", True)]
    read = {name: [version["paused"] for _, version in each.versions] for name, each in pools.items()}
    assert read == {"gpu": [False, True, False], "default": [False, True]}


async def set_pool(protocol: Protocol, name: str = "default", **fields: Any) -> None:
    """Change a pool as a user does: other fields get their defaults."""
    definition = PoolDefinition(name=name, **fields)
    await protocol.queue_manager.put_pool(definition, changed_by=Caller("alice"))
