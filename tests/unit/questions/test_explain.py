"""Why executions wait, and what the counts and pages of queues and gates say about them (P10)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.proof.queue_manager.walks import turns_of
from turnstile.common.domain.states import Status
from turnstile.executor.questions.answering import queue_stats
from turnstile.executor.questions.explain import (
    Explanation,
    Flow,
    WaitingOn,
    explain,
    members_at,
    order_at,
)
from turnstile.executor.questions.gates import GateCounts, pool_counts, pool_holders, resource_counts
from turnstile.executor.questions.protocol import QueueStats
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import (
    UNBOUNDED,
    Action,
    KeySettings,
    Pool,
    Rate,
    Resource,
    Use,
)
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DefineAction,
    DefinePool,
    DefineResource,
    Ended,
    Input,
    SetKey,
    Started,
    WorkerChanged,
)
from turnstile.executor.queue_manager.state import ActionState, Execution, PoolState, ResourceGate, State


class Scheduler:
    """A state, driven by inputs, and who was admitted and has not ended."""

    def __init__(self, *inputs: Input) -> None:
        self.state = State()
        self.now = 1000.0
        self.live: dict[int, tuple[str, str, int]] = {}
        self.run_seconds: float | None = None
        """How long executions ran, as their workers say."""
        self.turn(*inputs)

    def turn(self, *inputs: Input, after: float = 0.0) -> Decisions:
        self.now += after
        out = decide(self.state, inputs, self.now)
        assert not out.is_unfinished
        for admitted in out.admitted:
            queue = admitted.queue
            self.live[admitted.id] = (queue.action.ref, queue.key, admitted.priority)
        for finished in out.finished:
            del self.live[finished.id]
        return out

    def admit(self, ref: str, count: int = 1, *, key: str = "", priority: int = 3) -> list[int]:
        out = self.turn(*[Admit(action_ref=ref, key=key, priority=priority)] * count)
        return [admitted.id for admitted in out.admitted]

    def end(self, execution_id: int, **fields: bool) -> Decisions:
        return self.turn(self.ended(execution_id, **fields))

    def ended(self, execution_id: int, **fields: bool) -> Ended:
        grant = self.state.executions[execution_id].grant
        assert grant is not None
        if fields:
            return Ended(execution_id=execution_id, grant=grant, status=Status.FAILED, **fields)
        return Ended(
            execution_id=execution_id, grant=grant, status=Status.COMPLETED,
            started_at=None if self.run_seconds is None else 0.0, completed_at=self.run_seconds,
        )  # fmt: skip

    def running(self) -> list[Execution]:
        return [each for each in self.state.executions.values() if each.worker is not None]

    def explain(self, execution_id: int) -> Explanation:
        found = explain(self.state, execution_id, *self.live[execution_id])
        assert found is not None
        return found

    def on(self, execution_id: int) -> WaitingOn:
        found = self.explain(execution_id).waiting_on
        assert found is not None
        return found


def worker(
    name: str = "w1", *, slots: int = 10, pools: str = "default", is_taking: bool = True
) -> WorkerChanged:
    return WorkerChanged(
        worker_id=name, pools=frozenset(pools.split()), concurrency=slots, is_taking=is_taking
    )


def define(ref: str = "a", *uses: Use, **fields: object) -> DefineAction:
    return DefineAction(action=replace(Action(ref=ref, uses=uses), **fields))  # type: ignore[arg-type]


def resource(name: str, capacity: int, **fields: object) -> DefineResource:
    return DefineResource(resource=replace(Resource(name=name, capacity=capacity), **fields))  # type: ignore[arg-type]


# One execution.


def test_an_execution_knows_its_position() -> None:
    scheduler = Scheduler(define(max_concurrent=0), worker())
    late = scheduler.admit("a", 600)
    urgent = scheduler.admit("a", 2, priority=1)
    found = scheduler.explain(late[-1])
    assert found.position == found.queue_length == 602
    assert scheduler.explain(urgent[1]).position == 2


def test_what_has_ended_is_unknown_and_what_runs_waits_for_nothing() -> None:
    scheduler = Scheduler(define(), worker())
    (first,) = scheduler.admit("a")
    execution = scheduler.state.executions[first]
    assert execution.grant is not None
    scheduler.turn(Started(execution_id=first, grant=execution.grant, at=scheduler.now))
    assert scheduler.explain(first).waiting_on is None
    scheduler.end(first)
    assert explain(scheduler.state, first, "a") is None


def short_runs(**fields: Any) -> Scheduler:
    """Return a scheduler whose action is short, so that more is at its worker than may run at once."""
    scheduler = Scheduler(define(**fields), worker(slots=2))
    scheduler.run_seconds = 0.05
    scheduler.end(*scheduler.admit("a"))
    return scheduler


def test_what_waits_at_a_worker_whose_slots_are_used_waits_for_a_slot_there() -> None:
    scheduler = short_runs()
    ids = scheduler.admit("a", 20)
    assert [each.id for each in scheduler.running()] == ids[:6]
    on = scheduler.on(ids[3])
    assert (on.reason, on.name, on.capacity, on.held) == ("pool", "default", 2, 2)
    assert (on.position, on.waiting, [each.id for each in on.holders]) == (2, 4, ids[:2])
    assert scheduler.on(ids[1]).reason == "handing_over"
    third = scheduler.state.executions[ids[2]]
    assert third.grant is not None
    scheduler.turn(Started(execution_id=ids[2], grant=third.grant, at=scheduler.now))
    # What runs has a slot, whatever was granted before it.
    assert [each.id for each in scheduler.on(ids[1]).holders] == [ids[0], ids[2]]


def test_what_waits_at_a_worker_for_the_limit_of_its_queue_says_so() -> None:
    scheduler = short_runs(max_concurrent=2)
    ids = scheduler.admit("a", 20)
    on = scheduler.on(ids[4])
    assert (on.reason, on.capacity, on.held, on.position) == ("limit", 2, 2, 3)
    assert [each.id for each in on.holders] == ids[:2]


def test_what_runs_at_a_worker_that_drains_is_no_holder_of_a_slot_that_others_wait_for() -> None:
    scheduler = Scheduler(define(), worker("old", slots=1))
    scheduler.admit("a")
    scheduler.turn(worker("old", slots=1, is_taking=False), worker("new", slots=1))
    second, third = scheduler.admit("a", 2)
    on = scheduler.on(third)
    assert (on.reason, on.capacity, on.held) == ("pool", 1, 1)
    assert [each.id for each in on.holders] == [second]


def way(scheduler: Scheduler, execution_id: int) -> list[tuple[str, str, int, int | None]]:
    path = scheduler.explain(execution_id).path
    return [(each.gate, each.state, each.held, each.capacity) for each in path]


def test_the_path_leads_through_all_gates_and_says_where_it_waits() -> None:
    scheduler = Scheduler(
        resource("cad", 1, rank=1), resource("api", 9, rank=2, rate=Rate(starts=5, per_seconds=60)),
        worker(slots=4), define(
            "a", Use(resource="cad"), Use(resource="api", units=2), max_concurrent=3,
            max_concurrent_total=7,
        ),
    )  # fmt: skip
    (first, second) = scheduler.admit("a", 2)
    assert way(scheduler, second) == [
        ("queue", "passed", 1, 3), ("total", "passed", 1, 7), ("resource cad", "waiting", 1, 1),
        ("resource api", "not_reached", 2, 9), ("rate of resource api", "not_reached", 1, 5),
        ("pool default", "not_reached", 1, 4),
    ]  # fmt: skip
    assert way(scheduler, first)[-1] == ("pool default", "waiting", 1, 4)
    out = scheduler.turn(Admit(action_ref="a", run_at=1060.0))
    assert {state for _, state, *_ in way(scheduler, out.admitted[0].id)} == {"not_reached"}


def test_a_resource_without_a_limit_has_no_capacity() -> None:
    scheduler = Scheduler(
        resource("cad", UNBOUNDED, paused=True), worker(), define("a", Use(resource="cad"))
    )  # fmt: skip
    (first,) = scheduler.admit("a")
    assert scheduler.on(first).capacity is None
    assert way(scheduler, first)[1] == ("resource cad", "waiting", 0, None)


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"paused": True}, "queue"),
        ({"max_concurrent": 0}, "queue"),
        ({"max_concurrent_total": 0}, "total"),
        ({"rate": Rate(starts=1, per_seconds=60)}, "rate of action a"),
        ({"pool": "gpu"}, "pool gpu"),
        ({}, "pool default"),
    ],
)
def test_each_reason_is_a_place_on_the_path(fields: dict[str, Any], waits: str) -> None:
    scheduler = Scheduler(define(**fields), worker(slots=1))
    *_, last = scheduler.admit("a", 2)
    assert [gate for gate, state, *_ in way(scheduler, last) if state == "waiting"] == [waits]


def test_what_is_at_a_worker_names_what_is_there() -> None:
    scheduler = Scheduler(define(), worker())
    first, second = scheduler.admit("a", 2)
    on = scheduler.on(second)
    assert (on.reason, on.at) == ("handing_over", 1000.0)
    assert [holder.id for holder in on.holders] == [first, second]


def test_what_is_not_due_says_when_and_what_it_would_wait_for_then() -> None:
    scheduler = Scheduler(define(max_concurrent=1), worker())
    (running,) = scheduler.admit("a")
    out = scheduler.turn(Admit(action_ref="a", run_at=1060.0))
    on = scheduler.on(out.admitted[0].id)
    assert (on.reason, on.at) == ("not_due", 1060.0)
    assert on.root_cause is not None
    assert on.root_cause.on.reason == "limit"
    assert [holder.id for holder in on.root_cause.on.holders] == [running]


def test_a_paused_action_is_the_nearest_reason() -> None:
    scheduler = Scheduler(define(paused=True, max_concurrent=0))
    assert scheduler.on(*scheduler.admit("a")).reason == "paused"


def test_a_limit_names_its_holders_and_their_workers() -> None:
    scheduler = Scheduler(define(max_concurrent=2), worker())
    first, second, third = scheduler.admit("a", 3)
    on = scheduler.on(third)
    assert (on.reason, on.capacity, on.held, on.position) == ("limit", 2, 2, 1)
    assert [(holder.id, holder.worker_id) for holder in on.holders] == [(first, "w1"), (second, "w1")]
    assert on.root_cause is None


def test_behind_a_run_the_holders_have_a_slot_and_the_rest_neither_waits_nor_is_active() -> None:
    scheduler = Scheduler(define(max_concurrent=2), worker())
    scheduler.run_seconds = 0.05
    scheduler.end(*scheduler.admit("a"))
    ids = scheduler.admit("a", 20)
    at_worker = len(scheduler.running())
    assert at_worker == 6
    explanation = scheduler.explain(ids[-1])
    on = scheduler.on(ids[-1])
    assert (explanation.position, explanation.queue_length) == (14, 14)
    assert (on.reason, on.capacity, on.held, on.position) == ("limit", 2, 2, 14 + 4)
    assert [each.id for each in on.holders] == ids[:2]
    stats, counts = stats_of(scheduler.state, "a"), default_pool(scheduler)
    assert stats is not None
    assert (stats.queue_length, stats.waiting["limit"], stats.active_count, counts.held) == (14, 14, 2, 2)
    # No worker is missing: the limit lets no more run.
    assert (counts.wanted, [each.id for each in pool_holders(scheduler.state, "default")]) == (2, ids[:2])


def test_what_waits_at_a_worker_for_a_slot_has_none() -> None:
    scheduler = Scheduler(define(), worker(slots=2))
    scheduler.run_seconds = 0.05
    scheduler.end(*scheduler.admit("a"))
    ids = scheduler.admit("a", 20)
    assert len(scheduler.running()) == 2 + 4
    on, counts = scheduler.on(ids[-1]), default_pool(scheduler)
    assert (on.reason, on.capacity, on.held, on.position, on.waiting) == ("pool", 2, 2, 14, 14)
    assert (counts.capacity, counts.held, counts.waiting, counts.wanted) == (2, 2, 14, 20)
    assert [each.id for each in on.holders] == ids[:2]
    assert [each.id for each in pool_holders(scheduler.state, "default")] == ids[:2]
    scheduler.turn(worker("w2", slots=30, is_taking=False))
    assert scheduler.on(ids[-1]).held == 2
    scheduler.turn(DefinePool(pool=Pool(name="default", paused=True)))
    counts = default_pool(scheduler)
    assert counts.wanted == counts.held == 2


def test_behind_free_slots_the_root_cause_is_what_those_ahead_wait_for() -> None:
    scheduler = Scheduler(define(max_concurrent=1))
    first, second = scheduler.admit("a", 2)
    assert scheduler.on(first).reason == "no_worker"
    on = scheduler.on(second)
    assert on.reason == "limit"
    assert on.root_cause is not None
    assert (on.root_cause.ids, on.root_cause.on.reason) == ((), "no_worker")


def test_workers_without_slots_serve_nothing() -> None:
    scheduler = Scheduler(define(), worker(slots=0))
    assert scheduler.on(*scheduler.admit("a")).reason == "no_worker"


def test_without_a_worker_that_takes_the_other_pools_are_named() -> None:
    scheduler = Scheduler(define(), worker("here", is_taking=False), worker("there", pools="gpu"))
    on = scheduler.on(*scheduler.admit("a"))
    assert (on.reason, on.name, on.other_pools) == ("no_worker", "default", ("gpu",))


def test_busy_workers_are_counted_and_what_runs_there_is_named() -> None:
    scheduler = Scheduler(define(), define("b"), worker(slots=2))
    first, second = scheduler.admit("a", 2)
    scheduler.admit("b", 3)
    (late,) = scheduler.admit("a")
    on = scheduler.on(late)
    assert (on.reason, on.name, on.capacity, on.held, on.waiting) == ("pool", "default", 2, 2, 4)
    assert [(holder.id, holder.action_ref) for holder in on.holders] == [(first, "a"), (second, "a")]


def test_a_total_in_use_names_its_holders() -> None:
    scheduler = Scheduler(define(max_concurrent=1, max_concurrent_total=1), worker())
    (first,) = scheduler.admit("a", key="1")
    (second,) = scheduler.admit("a", key="2")
    (third,) = scheduler.admit("a", key="3")
    on = scheduler.on(third)
    assert (on.reason, on.capacity, on.held, on.position, on.waiting) == ("total", 1, 1, 2, 2)
    assert [holder.id for holder in on.holders] == [first]
    assert scheduler.on(second).position == 1


def test_a_resource_names_the_missing_units_and_who_holds_them() -> None:
    scheduler = Scheduler(resource("cad", 3), define("a", Use(resource="cad", units=2)), worker())
    first, second = scheduler.admit("a", 2)
    on = scheduler.on(second)
    assert (on.reason, on.name, on.units, on.capacity, on.held) == ("resource", "cad", 2, 3, 2)
    assert (on.position, on.waiting) == (1, 1)
    assert [(holder.id, holder.units) for holder in on.holders] == [(first, 2)]


def test_behind_a_heavier_execution_a_light_one_waits_although_it_fits() -> None:
    scheduler = Scheduler(
        resource("cad", 3), worker(),
        define("heavy", Use(resource="cad", units=2)), define("light", Use(resource="cad")),
    )  # fmt: skip
    _, second = scheduler.admit("heavy", 2)
    on = scheduler.on(*scheduler.admit("light"))
    assert (on.reason, on.units, on.capacity, on.held) == ("resource", 1, 3, 2)
    assert (on.position, on.first) == (2, (second, 2))
    assert scheduler.on(second).first is None


@pytest.mark.parametrize(
    ("change", "closed"),
    [
        (resource("cad", 3, paused=True), "paused"),
        (resource("cad", 1), "capacity_too_low"),
        (resource("cad", 0), "capacity_zero"),
    ],
)
def test_a_closed_resource_says_why_nothing_passes(change: DefineResource, closed: str) -> None:
    scheduler = Scheduler(resource("cad", 3), define("a", Use(resource="cad", units=2)), worker())
    _, second, third = scheduler.admit("a", 3)
    scheduler.turn(change)
    on = scheduler.on(third)
    assert (on.reason, on.closed, on.position, on.waiting) == ("resource", closed, 2, None)
    assert scheduler.on(second).position == 1


def test_a_used_up_rate_says_when_the_next_start_is() -> None:
    scheduler = Scheduler(define(rate=Rate(starts=2, per_seconds=60)), worker())
    *_, third, fourth = scheduler.admit("a", 4)
    on = scheduler.on(fourth)
    assert (on.reason, on.name, on.at, on.position, on.waiting) == ("rate", "action a", 1060.0, 2, 2)
    assert scheduler.on(third).position == 1


def between_two_resources() -> tuple[Scheduler, int, int]:
    """Return a scheduler where an execution holds a unit of `first`, and waits for `second`."""
    scheduler = Scheduler(
        resource("first", 1, rank=1), resource("second", 1, rank=2), worker(),
        define("both", Use(resource="first"), Use(resource="second")),
        define("other", Use(resource="second")),
    )  # fmt: skip
    (running,) = scheduler.admit("other")
    (holding,) = scheduler.admit("both")
    return scheduler, running, holding


def test_an_execution_between_two_gates_has_no_position_in_its_queue() -> None:
    scheduler, running, holding = between_two_resources()
    found = scheduler.explain(holding)
    assert (found.status, found.position, found.queue_length) == (Status.QUEUED, None, 1)
    on = scheduler.on(holding)
    assert (on.reason, on.name, on.position) == ("resource", "second", 1)
    assert [holder.id for holder in on.holders] == [running]


def test_behind_an_idle_holder_the_root_cause_is_what_that_waits_for() -> None:
    scheduler, running, holding = between_two_resources()
    on = scheduler.on(*scheduler.admit("both"))
    assert (on.reason, on.name) == ("resource", "first")
    assert [(holder.id, holder.worker_id) for holder in on.holders] == [(holding, None)]
    assert on.root_cause is not None
    assert on.root_cause.ids == (holding,)
    assert on.root_cause.on.name == "second"
    assert [holder.id for holder in on.root_cause.on.holders] == [running]


# Counts and orders.


def default_pool(scheduler: Scheduler) -> GateCounts:
    return pool_counts(scheduler.state, scheduler.state.pools["default"])


def listed_at(state: State, gate: ResourceGate | PoolState) -> list[int]:
    return [place.id for place in order_at(gate, members_at(state, gate))]


def stats_of(state: State, ref: str) -> QueueStats | None:
    steps = queue_stats(state, ref)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            stats: QueueStats | None = end.value
            return stats


def test_an_action_that_was_never_used_has_zeros_and_an_unknown_one_nothing() -> None:
    stats = stats_of(Scheduler(define()).state, "a")
    assert stats is not None
    assert (stats.queue_length, stats.active_count, stats.oldest_enqueued_at) == (0, 0, None)
    assert set(stats.waiting.values()) == {0}
    assert stats_of(State(), "a") is None


def test_the_stats_have_the_longest_queues_of_keys_and_the_totals() -> None:
    scheduler = Scheduler(define(max_concurrent=1), worker())
    (first,) = scheduler.admit("a", key="1")
    scheduler.admit("a", 3, key="2")
    scheduler.turn(after=5)
    scheduler.admit("a", 2, key="1")
    scheduler.end(first)
    stats = stats_of(scheduler.state, "a")
    assert stats is not None
    assert (stats.queue_length, stats.active_count, stats.oldest_enqueued_at) == (3, 2, 1000.0)
    assert (stats.total_enqueued, stats.total_completed, stats.waiting["limit"]) == (6, 1, 3)
    assert [(key.key, key.queue_length, key.active_count) for key in stats.by_key] == [
        ("2", 2, 1),
        ("1", 1, 1),
    ]


def why(scheduler: Scheduler, ref: str = "a") -> list[tuple[str, str, int]]:
    stats = stats_of(scheduler.state, ref)
    assert stats is not None
    assert sum(count for _, count in stats.why) == stats.queue_length
    return [(bound.reason, bound.name, count) for bound, count in stats.why]


def test_executions_behind_a_free_slot_wait_for_what_the_first_one_waits_for() -> None:
    scheduler = Scheduler(define(max_concurrent=1))
    scheduler.admit("a", 7)
    assert why(scheduler) == [("no_worker", "default", 7)]
    scheduler.turn(worker(slots=1))
    assert why(scheduler) == [("limit", "", 6)]
    scheduler.turn(define(max_concurrent=1, paused=True))
    assert why(scheduler) == [("paused", "", 6)]


def test_executions_behind_one_that_holds_its_slot_while_it_waits_wait_for_the_same() -> None:
    scheduler = Scheduler(
        resource("first", 9, rank=1), resource("second", 1, rank=2),
        define("a", Use(resource="first"), Use(resource="second"), max_concurrent=2), worker(),
    )  # fmt: skip
    scheduler.admit("a", 5)
    stats = stats_of(scheduler.state, "a")
    assert stats is not None
    assert (stats.active_count, stats.held_waiting) == (1, 1)
    assert why(scheduler) == [("resource", "second", 4)]
    assert [(gate.gate, gate.held, gate.capacity) for gate in stats.gates] == [
        ("resource first", 2, 9), ("resource second", 1, 1), ("pool default", 1, 10)
    ]  # fmt: skip


def test_units_that_wait_at_a_later_gate_are_reported_as_idle() -> None:
    scheduler, _, holding = between_two_resources()
    gate = scheduler.state.resources["first"]
    stats, counts = stats_of(scheduler.state, "both"), resource_counts(scheduler.state, gate)
    assert stats is not None
    assert (stats.queue_length, stats.active_count, stats.held_waiting) == (1, 0, 1)
    assert (counts.held, counts.held_waiting, [each.id for each in gate.holders]) == (1, 1, [holding])


def test_a_pool_wants_what_the_limits_let_run() -> None:
    scheduler = Scheduler(define(max_concurrent=4), worker(slots=2))
    scheduler.admit("a", 100)
    counts = default_pool(scheduler)
    assert (counts.capacity, counts.held, counts.waiting, counts.wanted) == (2, 2, 2, 4)
    scheduler.turn(DefinePool(pool=Pool(name="default", paused=True)))
    counts = default_pool(scheduler)
    assert counts.wanted == counts.held == 2


@pytest.mark.parametrize("order", ["fair", "arrival"])
def test_what_a_pool_lists_starts_in_that_order(order: str) -> None:
    pool = Pool(name="default", order="fair" if order == "fair" else "arrival", weights={"a": 3, "b": 2})
    scheduler = Scheduler(DefinePool(pool=pool), define("a"), define("b"), define("c"), worker(slots=1))
    for ref, count, priority in [("a", 9, 3), ("b", 9, 3), ("c", 9, 3), ("b", 2, 1), ("a", 3, 4)]:
        scheduler.admit(ref, count, priority=priority)
    listed = listed_at(scheduler.state, scheduler.state.pools["default"])
    started = []
    while running := scheduler.running():
        started += [granted.id for granted in scheduler.end(running[0].id).granted]
    assert listed == started


def test_what_a_fair_resource_and_a_fair_total_list_starts_in_that_order() -> None:
    scheduler = Scheduler(
        resource("cad", 1, order="fair"), worker(),
        define("a", Use(resource="cad", weight=2), max_concurrent_total=5, order="fair"),
        define("b", Use(resource="cad")),
    )  # fmt: skip
    scheduler.turn(SetKey(action_ref="a", key="1", settings=KeySettings(weight=3)))
    for ref, key, count in [("a", "1", 8), ("a", "2", 8), ("b", "", 8)]:
        scheduler.admit(ref, count, key=key)
    listed = listed_at(scheduler.state, scheduler.state.resources["cad"])
    started = []
    while running := scheduler.running():
        started += [granted.id for granted in scheduler.end(running[0].id).granted]
    assert listed == started


# Random walks.


def waiting_of(action: ActionState) -> dict[int, tuple[str, int]]:
    """Return key and priority of what has not ended and is neither at a worker nor delayed."""
    queued = {
        each: (key, priority)
        for key, queue in action.queues.items()
        for priority, ids in queue.waiting.items()
        for each in ids
    }
    return queued | {each.id: (each.queue.key, each.priority) for each in action.holding}


def assert_true(state: State, action: ActionState, key: str, execution_id: int, found: Explanation) -> None:
    """Check that what a reason claims is so."""
    on = found.waiting_on
    assert on is not None
    definition, total = action.definition, action.definition.max_concurrent_total
    match on.reason:
        case "paused":
            assert definition.paused
        case "limit":
            queue = action.queues[key]
            assert found.position is not None
            assert queue.limit is not None
            assert queue.held + found.position > queue.limit
            assert queue.held >= queue.limit or on.root_cause is not None
        case "total":
            assert total is not None
            assert action.held >= total
        case "no_worker":
            serving = [each for each in state.workers.values() if each.serves(definition)]
            assert not any(each.is_taking and each.concurrency for each in serving)
        case "rate":
            name = on.name.removeprefix("resource ")
            window = action.window if on.name.startswith("action ") else state.resources[name].window
            assert window is not None
            assert window.left(state.now) <= 0
        case "resource":
            gate = state.resources[on.name]
            units = next(use.units for use in definition.uses if use.resource == on.name)
            assert (on.units, on.held, on.capacity) == (units, gate.held, gate.definition.capacity)
            if on.closed is not None:
                assert gate.definition.paused or gate.definition.capacity < units
                return
            order = listed_at(state, gate)
            assert on.position is not None
            assert order[on.position - 1] == execution_id
            assert on.waiting == resource_counts(state, gate).waiting == len(order)
            assert gate.held + units > gate.definition.capacity or on.position > 1
        case "pool":
            assert not action.crew.has_room
            pool = state.pools[definition.pool]
            order = listed_at(state, pool)
            assert on.position is not None
            assert order[on.position - 1] == execution_id
            assert on.waiting == pool_counts(state, pool).waiting == len(order)
        case _:
            pytest.fail(f"{on.reason} is no reason at the end of a turn")


def test_the_first_position_among_many_keys_is_found_without_looking_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(define(max_concurrent=1), worker(slots=1))
    _, second, *_ = [scheduler.admit("a", key=str(number))[0] for number in range(1000)]
    looked_at = []

    def flow(*fields: Any) -> Flow:
        looked_at.append(fields)
        return Flow(*fields)

    monkeypatch.setattr("turnstile.executor.questions.explain.Flow", flow)
    explanation = scheduler.explain(second)

    assert explanation is not None
    assert explanation.waiting_on is not None
    assert (explanation.waiting_on.position, explanation.waiting_on.waiting) == (1, 999)
    assert len(looked_at) < 10


def test_the_counts_of_many_keys_are_taken_in_steps() -> None:
    scheduler = Scheduler(define(max_concurrent=1), worker(slots=1))
    for number in range(600):
        scheduler.admit("a", key=str(number))
    steps = queue_stats(scheduler.state, "a")
    assert sum(1 for _ in steps) == 2
    stats = stats_of(scheduler.state, "a")
    assert stats is not None
    assert (stats.queue_length, stats.active_count, len(stats.by_key)) == (599, 1, 100)


@pytest.mark.parametrize("seed", range(80))
def test_every_reason_is_true_and_the_counts_are_those_of_the_reasons(seed: int) -> None:
    for system, _ in turns_of(seed):
        state = system.state
        for ref, action in state.actions.items():
            waiting = waiting_of(action)
            reasons = Counter[str]()
            for execution_id, (key, priority) in waiting.items():
                found = explain(state, execution_id, ref, key, priority)
                assert found is not None
                assert_true(state, action, key, execution_id, found)
                reasons += Counter([found.waiting_on.reason] if found.waiting_on else [])
            stats = stats_of(state, ref)
            assert stats is not None
            assert stats.queue_length == sum(stats.waiting.values()) == len(waiting)
            with_key = sum(bool(key) for key, _ in waiting.values())
            assert sum(key.queue_length for key in stats.by_key) == with_key
            assert +Counter(stats.waiting) == reasons
            at_workers = [e for e in state.executions.values() if e.worker and e.queue.action is action]
            in_runs = sum(queue.surplus for queue in action.queues.values())
            assert stats.active_count == len(at_workers) - in_runs
        for name, pool in state.pools.items():
            workers = [each for each in state.workers.values() if name in each.pools]
            counts = pool_counts(state, pool)
            assert counts.held <= counts.wanted
            assert counts.held <= sum(each.concurrency for each in workers)


def test_questions_change_no_decision() -> None:
    for seed in range(6):
        for (asked, out), (_, left_alone) in zip(turns_of(seed), turns_of(seed), strict=True):
            for ref, action in asked.state.actions.items():
                for execution_id, (key, priority) in waiting_of(action).items():
                    explain(asked.state, execution_id, ref, key, priority)
            gates: list[ResourceGate | PoolState] = [*asked.state.pools.values()]
            for gate in (*gates, *asked.state.resources.values()):
                listed_at(asked.state, gate)
            assert [(each.id, each.grant, each.worker.id) for each in out.granted] == [
                (each.id, each.grant, each.worker.id) for each in left_alone.granted
            ]
