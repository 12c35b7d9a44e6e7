"""Resources, rates and patience: P7, P11 to P14 and GATES 1."""

from math import inf

import pytest

from tests.proof.queue_manager.loads import Ledger, check_load, door, with_report
from tests.unit.queue_manager.scheduler import Scheduler, two_pools, two_resources, uses
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Granted
from turnstile.executor.queue_manager.definitions import Action, Pool, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DefineAction,
    DefineResource,
    DeleteAction,
    DeleteResource,
    Ended,
    Input,
    WorkerChanged,
)
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.state import State


def test_units_of_a_resource_are_shared_by_actions() -> None:
    s = Scheduler(
        Resource(name="r", capacity=2), Action(ref="a", uses=uses("r")), Action(ref="b", uses=uses("r"))
    )
    assert s.submit_all("a", "b", "a") == [1, 2]
    assert s.end(2) == [3]


def test_a_light_execution_never_overtakes_a_heavy_one() -> None:
    heavy = Action(ref="a", uses=(Use(resource="r", units=2),))
    s = Scheduler(Resource(name="r", capacity=2), heavy, Action(ref="b", uses=uses("r")))
    assert s.submit_all("b", "a", "b") == [1]
    assert s.end(1) == [2]
    assert s.end(2) == [3]


def test_what_needs_more_than_the_capacity_is_refused() -> None:
    s = Scheduler(Resource(name="r", capacity=1), Action(ref="a", uses=(Use(resource="r", units=2),)))
    s.turn(Admit(action_ref="a"))
    assert s.out.refused[0].code is Code.INVALID_PARAMETERS
    assert "takes 2 units of the resource 'r'" in s.out.refused[0].message


def test_what_needs_more_than_a_lowered_capacity_is_passed_and_keeps_its_place() -> None:
    heavy = Action(ref="a", uses=(Use(resource="r", units=2),))
    s = Scheduler(Resource(name="r", capacity=2), heavy, Action(ref="b", uses=uses("r")))
    s.submit_all("b", "a", "b")
    assert s.change_resource("r", capacity=1) == []
    assert s.end(1) == [3]
    assert s.change_resource("r", capacity=2) == []
    s.submit_all("b")
    assert s.end(3) == [2]


def test_lowering_a_capacity_takes_nothing_away() -> None:
    s = Scheduler(Resource(name="r", capacity=2), Action(ref="a", uses=uses("r")))
    s.submit_all(*"aaa")
    s.change_resource("r", capacity=1)
    assert s.running() == [1, 2]
    assert s.end(1) == []
    assert s.end(2) == [3]


def test_resources_are_acquired_by_rank_and_name_whatever_the_action_lists() -> None:
    first, last = Resource(name="y", capacity=1, rank=1), Resource(name="x", capacity=1, rank=2)
    s = Scheduler(first, last, Action(ref="a", uses=uses("x", "y")), Action(ref="b", uses=uses("x")))
    s.submit_all("b", "a")
    assert [gate.definition.name for gate in s.execution(2).held_at] == ["y"]


def test_what_waits_between_two_resources_holds_units_slot_and_total() -> None:
    s = two_resources(Action(ref="c", uses=uses("x")), a={"max_concurrent": 1, "max_concurrent_total": 1})
    assert s.submit_all("b", "a", "c") == [1]
    assert s.holding() == [2]
    assert s.state.actions["a"].held == 1
    assert s.end(1) == [2]
    assert s.end(2) == [3]


def test_what_waits_for_its_first_resource_holds_nothing() -> None:
    s = Scheduler(Resource(name="x", capacity=1), Action(ref="a", max_concurrent=1, uses=uses("x")))
    s.submit_all("a", "a/k")
    assert s.holding() == []
    assert s.state.actions["a"].held == 1


def test_units_are_not_held_without_a_free_worker_slot() -> None:
    s = two_resources(workers={"w": 1})
    assert s.submit_all("b", "a") == [1]
    assert s.holding() == []


def test_the_last_holder_gives_back_when_a_worker_slot_is_taken() -> None:
    s = two_resources(Action(ref="p"), x={"capacity": 2}, workers={"w": 3})
    s.submit_all("b", "a", "a")
    assert s.holding() == [2, 3]
    assert s.submit_all("p") == [4]
    assert s.holding() == [2]
    assert s.state.resources["x"].held == 1


def test_a_holder_gives_back_when_another_pool_takes_the_worker_slot() -> None:
    s = two_resources(Action(ref="p", pool="q"), x={"capacity": 2}, workers={})
    s.worker("w", 3, pools="default q")
    s.submit_all("b", "a", "a")
    assert s.holding() == [2, 3]
    assert s.submit_all("p") == [4]
    assert s.holding() == [2]
    assert s.submit_all("p") == [5]
    assert s.holding() == []


def test_a_cancelled_holder_releases_everything_and_another_may_hold() -> None:
    s = two_resources(x={"capacity": 2}, workers={"w": 2})
    s.submit_all("b", "a", "a")
    assert s.holding() == [2]
    s.cancel(2)
    assert s.holding() == [3]


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_holder_gives_back_when_its_route_closes(name: str) -> None:
    s = two_resources(Action(ref="c", uses=uses("x")))
    s.submit_all("b", "a", "c")
    started = s.change_resource(name, paused=True)
    assert s.holding() == []
    assert started == ([3] if name == "y" else [])
    assert s.end(1) == []


def test_units_stay_held_until_the_end_is_committed() -> None:
    s = Scheduler(Resource(name="r", capacity=1), Action(ref="a", uses=uses("r")))
    s.submit_all("a", "a")
    s.cancel(1)
    assert s.running() == [1]
    assert s.end(1) == [2]


def test_others_pass_what_no_worker_can_take() -> None:
    s = two_pools()
    assert s.submit_all("p", "a", "g") == [1, 3]
    assert s.out.passed_over == 1
    assert s.end(1, 3) == [2]


def test_others_do_not_pass_what_a_worker_could_take() -> None:
    s = Scheduler(
        Resource(name="r", capacity=2),
        Action(ref="a", uses=(Use(resource="r", units=2),)),
        Action(ref="g", pool="gpu", uses=uses("r")),
    )
    s.worker("v", 4, pools="gpu")
    assert s.submit_all("g", "a", "g") == [1]
    assert s.end(1) == [2]


def test_an_action_without_a_worker_blocks_nobody() -> None:
    s = Scheduler(
        Resource(name="r", capacity=1),
        Action(ref="a", pool="none", uses=uses("r")),
        Action(ref="b", uses=uses("r")),
    )
    assert s.submit_all("a", "b") == [2]


def test_patience_ends_and_units_are_set_aside() -> None:
    s = two_pools(patience_seconds=10)
    s.submit_all("p", "a", *["g"] * 9)
    assert s.end(3) == [4]
    s.wait(9)
    assert s.end(4) == [5]
    s.wait(1)
    assert s.end(5) == []
    assert s.holding() == [2]
    assert s.execution(2).is_impatient
    assert s.end(1) == [2]
    assert s.end(2) == [6]


def test_a_holder_acquires_what_becomes_free_although_no_worker_slot_is_left_for_another_one() -> None:
    s = Scheduler(
        *(Resource(name=name, capacity=1) for name in "xyz"),
        Action(ref="a", uses=uses("x", "y", "z")),
        Action(ref="b", uses=uses("y")),
        Action(ref="c", uses=uses("z")),
        Action(ref="p", max_concurrent=1),
        workers={"w": 3},
    )
    s.submit_all("b", "c", "a")
    assert s.holding() == [3]
    assert s.turn(s.ended(1), Admit(action_ref="p")) == [4]
    assert [gate.definition.name for gate in s.execution(3).held_at] == ["x", "y"]


def test_patience_begins_when_the_pool_is_resumed() -> None:
    s = two_pools(patience_seconds=1)
    s.submit_all("p")
    s.define(Pool(name="default", paused=True))
    s.submit_all("a", "g", "g", "g")
    s.wait(5)
    assert s.end(3) == [4]
    s.define(Pool(name="default"))
    assert s.end(4) == [5]


def test_patience_is_not_spent_while_the_pool_is_paused_or_has_no_worker() -> None:
    s = two_pools(patience_seconds=1)
    s.define(Pool(name="default", paused=True))
    s.submit_all("a", "g", "g")
    s.wait(5)
    assert s.end(2) == [3]
    s.wait(5)
    assert s.holding() == []


@pytest.mark.parametrize("gone", ["drains", "paused", "lost"])
def test_an_impatient_holder_gives_back_when_no_worker_is_left(gone: str) -> None:
    s = two_pools(patience_seconds=1)
    s.submit_all("p", "a", "g", "g", "g")
    s.end(3)
    s.wait(2)
    s.end(4)
    assert s.holding() == [2]
    match gone:
        case "drains":
            started = s.worker("w", 1, is_taking=False)
        case "paused":
            started = s.define(Pool(name="default", paused=True))
        case _:
            started = s.lose("w")
    assert started == [5]


def test_a_rate_slides_exactly() -> None:
    s = Scheduler(Action(ref="a", rate=Rate(starts=2, per_seconds=10)))
    assert s.submit_all("a") == [1]
    s.now = 4
    assert s.submit_all(*"aaa") == [2]
    assert s.out.next_at == 10
    assert s.wait(5.5) == []
    assert s.wait(0.5) == [3]
    assert s.wait(3.5) == []
    assert s.wait(0.5) == [4]


def test_retries_and_reclaims_count_again_at_a_rate() -> None:
    s = Scheduler(Action(ref="a", rate=Rate(starts=1, per_seconds=10)))
    s.submit_all("a")
    assert s.give_back(1) == []
    assert s.wait(10) == [1]


def test_the_rate_of_a_resource_counts_all_its_actions() -> None:
    rated = Resource(name="r", capacity=9, rate=Rate(starts=1, per_seconds=5))
    s = Scheduler(rated, Action(ref="a", uses=uses("r")), Action(ref="b", uses=uses("r")))
    assert s.submit_all("a", "b") == [1]
    assert s.wait(5) == [2]


def test_a_holder_keeps_one_start_of_each_rate_that_it_passed() -> None:
    rate = Rate(starts=2, per_seconds=10)
    s = two_resources(Action(ref="c", uses=uses("x")), x={"capacity": 9, "rate": rate})
    s.submit_all("b", "a", "c", "c")
    assert s.running() == [1, 3]
    assert s.holding() == [2]
    assert s.end(1) == [2]


def test_a_start_that_was_kept_and_given_up_is_used_by_others() -> None:
    rate = Rate(starts=1, per_seconds=10)
    s = two_resources(Action(ref="c", uses=uses("x")), x={"capacity": 9, "rate": rate})
    s.submit_all("b", "a", "c")
    assert s.cancel(2) == [3]


def test_time_wakes_what_waits_for_a_start_while_another_one_is_kept() -> None:
    rate = Rate(starts=2, per_seconds=10)
    s = two_resources(Action(ref="c", rate=rate), a={"rate": rate})
    s.submit_all("a")
    s.end(1)
    s.submit_all("b", "a", "a")
    assert s.holding() == [3]
    s.end(2)
    assert s.running() == [3]
    s.end(3)
    assert s.wait(10) == [4]


def test_time_wakes_what_waits_behind_a_kept_start_of_its_action_that_was_used() -> None:
    s = Scheduler(
        Resource(name="x", capacity=2),
        Resource(name="y", capacity=2),
        Action(ref="a", uses=uses("x", "y"), rate=Rate(starts=1, per_seconds=5)),
        Action(ref="b", uses=(Use(resource="y", units=2),)),
    )
    s.submit_all("b", "a", "a")
    assert s.holding() == [2]
    assert s.end(1) == [2]
    assert s.wait(5) == [3]


def test_a_start_is_due_at_the_instant_that_was_announced() -> None:
    s = Scheduler(Action(ref="a", rate=Rate(starts=1, per_seconds=0.1)))
    s.now = 12.2
    s.submit_all("a", "a")
    s.now = s.out.next_at
    assert s.turn() == [2]


def test_the_next_start_is_behind_those_that_are_kept() -> None:
    window = RateWindow("action a", Rate(starts=2, per_seconds=10))
    window.kept = 2
    window.count(0)
    window.count(4)
    assert window.next_start_at(5) == 10
    window.kept = 1
    assert window.next_start_at(5) == 14
    window.kept = 2
    assert window.next_start_at(5) == inf


def test_a_changed_rate_acts_at_once() -> None:
    s = Scheduler(Action(ref="a", rate=Rate(starts=1, per_seconds=10)))
    s.submit_all("a", "a", "a")
    assert s.change("a", rate=Rate(starts=2, per_seconds=10)) == [2]
    assert s.change("a", rate=None) == [3]


def rated_action(per_seconds: float, *resources: str) -> Input:
    rate = Rate(starts=1, per_seconds=per_seconds)
    return DefineAction(action=Action(ref="a", uses=uses(*resources), rate=rate))


def rated_resource(per_seconds: float) -> Input:
    return DefineResource(
        resource=Resource(name="r", capacity=1, rate=Rate(starts=1, per_seconds=per_seconds))
    )


UNRATED = DefineAction(action=Action(ref="a"))
DELETE_ACTION = DeleteAction(ref="a", reason="gone")
DELETE_RESOURCE = DeleteResource(name="r")


@pytest.mark.parametrize(
    "changes",
    [
        [rated_action(9)],
        [rated_resource(9)],
        [UNRATED, rated_action(9)],
        [DELETE_ACTION, rated_action(9)],
        [rated_action(1), DELETE_RESOURCE, rated_resource(9)],
    ],
    ids=["changed", "changed at a resource", "taken away", "action deleted", "resource deleted"],
)
def test_a_load_finds_the_starts_that_a_rate_counts_since_it_changed(changes: list[Input]) -> None:
    state, ledger = State(), Ledger()

    def turn(now: float, *inputs: Input) -> list[Granted]:
        out = decide(state, inputs, now)
        ledger.write(state, inputs, out)
        return out.granted

    worker = WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=1)
    turn(0, rated_resource(1), rated_action(1, "r"), worker)
    (started,) = turn(0, Admit(action_ref="a", source=door("a")))
    end = Ended(execution_id=started.id, grant=started.grant, status=Status.COMPLETED)
    turn(2, with_report(end))
    turn(2, *changes)
    check_load(ledger, state)


def test_a_rate_that_a_resource_gets_counts_what_holds_its_units() -> None:
    s = two_resources(x={"capacity": 9})
    s.submit_all("b", "a")
    s.change_resource("x", rate=Rate(starts=1, per_seconds=5))
    assert s.end(1) == [2]


def test_actions_take_turns_at_a_fair_resource_by_their_weights() -> None:
    s = Scheduler(
        Resource(name="r", capacity=1, order="fair"),
        Action(ref="a", uses=(Use(resource="r", weight=2),)),
        Action(ref="b", uses=uses("r")),
        Pool(name="default", order="arrival"),
    )
    s.submit_all(*"a" * 20, *"b" * 20)
    started = s.drain(15)
    assert abs(started.count("a") - 2 * started.count("b")) <= 2


def test_what_waits_at_a_resource_is_in_fair_order_as_soon_as_the_resource_is() -> None:
    s = Scheduler(
        Resource(name="r", capacity=1), Action(ref="a", uses=uses("r")), Action(ref="b", uses=uses("r"))
    )
    s.submit_all("a", "a", "a", "b")
    s.change_resource("r", order="fair")
    assert s.end(1) == [2]
    assert s.end(2) == [4]


def test_a_fair_resource_counts_units() -> None:
    s = Scheduler(
        Resource(name="r", capacity=3, order="fair"),
        Action(ref="a", uses=(Use(resource="r", units=3),)),
        Action(ref="b", uses=uses("r")),
    )
    s.submit_all(*"a" * 20, *"b" * 60)
    started = s.drain(24)
    assert abs(3 * started.count("a") - started.count("b")) <= 4


def test_crossed_resources_never_deadlock() -> None:
    s = Scheduler(
        Resource(name="x", capacity=1),
        Resource(name="y", capacity=1),
        Action(ref="a", uses=uses("x", "y")),
        Action(ref="b", uses=uses("y", "x")),
    )
    s.submit_all(*"abab")
    assert s.drain(3) == ["b", "a", "b"]


def test_the_grants_of_a_turn_do_not_depend_on_the_order_of_its_ends() -> None:
    granted = []
    for order in ((1, 2), (2, 1)):
        s = Scheduler(
            Resource(name="r", capacity=2),
            Action(ref="a", uses=(Use(resource="r", units=2),)),
            Action(ref="b", uses=uses("r")),
        )
        s.submit_all("b", "b", "a", "b")
        granted.append(s.end(*order))
    assert granted == [[3], [3]]


def test_passages_tell_when_each_gate_was_passed() -> None:
    s = two_resources()
    s.submit_all("b", "a")
    s.now = 7
    s.end(1)
    s.now = 9
    s.end(2)
    (finished,) = s.out.finished
    assert [(p.gate, p.arrived_at, p.passed_at) for p in finished.passages] == [
        ("queue", 0, 0),
        ("resource x", 0, 0),
        ("resource y", 0, 7),
    ]


def test_a_changed_rank_gives_back_and_acquires_in_the_new_order() -> None:
    s = two_resources(x={"rank": 1}, y={"rank": 2})
    s.submit_all("b", "a")
    s.change_resource("x", rank=3)
    assert s.holding() == []
    assert s.end(1) == [2]
    assert [gate.definition.name for gate in s.execution(2).held_at] == ["y", "x"]


def test_a_report_of_an_old_grant_frees_no_unit() -> None:
    s = Scheduler(Resource(name="r", capacity=1), Action(ref="a", uses=uses("r")))
    s.submit_all("a", "a")
    old: Ended = s.ended(1)
    s.give_back(1)
    assert s.turn(old) == []
    assert s.state.resources["r"].held == 1
