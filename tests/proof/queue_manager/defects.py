"""Planted bugs: each changes one line of the queue manager, and must be detected.

A bug is planted by replacing the code of one function, in place, while it is looked for: by exploring the
named configurations, by walks, by the references of lists and lines, or by one unit test.
"""

import inspect
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest

from tests.proof.planted import parts_of
from tests.proof.queue_manager import configurations as c
from tests.proof.queue_manager.configurations import Configuration
from tests.proof.queue_manager.explorer import explore
from tests.proof.queue_manager.recount import Violation
from tests.proof.queue_manager.references import (
    LINE_OPERATIONS,
    LIST_OPERATIONS,
    check_line,
    check_waiting_list,
    seeded,
)
from tests.proof.queue_manager.walks import walk
from tests.unit.queue_manager import test_gates, test_life, test_pools, test_queues, test_runs
from tests.unit.queue_manager.scheduler import uses
from turnstile.common.domain.states import Status
from turnstile.executor.leader import loading, writing
from turnstile.executor.queue_manager import decide, gates, pools, runs, state, transitions
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Rate
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.lines import FairClock, Line
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.state import Crew, Lane, Queue, State, Worker
from turnstile.executor.queue_manager.waiting import WaitingList, _Chunk

Detector = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A wrong line, and how it is found."""

    name: str
    where: Any
    """A function, a method, or a property."""
    right: str
    wrong: str
    detectors: tuple[Detector, ...]

    @property
    def is_quick(self) -> bool:
        """Whether one unit test or reference finds it, in milliseconds."""
        return self.detectors[0].__name__ not in {"explore_all", "walks"}


DEFECTS: list[Defect] = []
SECONDS_MAX = 8
"""For one unit test, which takes milliseconds where the turn ends."""


def plant(name: str, where: Any, change: str, *detectors: Detector) -> None:
    """Add a planted bug, by a change such as `right => wrong`; without detectors, walks look for it."""
    right, wrong = parts_of(change)
    found = detectors or (walks,)
    DEFECTS.append(Defect(name=name, where=where, right=right, wrong=wrong, detectors=found))


def plant_all(detectors: Detector | tuple[Detector, ...], *bugs: tuple[str, Any, str]) -> None:
    """Add planted bugs that the same detectors look for."""
    for name, where, change in bugs:
        plant(name, where, change, *(detectors if isinstance(detectors, tuple) else (detectors,)))


def explored(*makers: Callable[[int], Configuration], alive: int = 3, states_max: int = 1500) -> Detector:
    def explore_all() -> None:
        for make in makers:
            report = explore(make(alive), states_max=states_max)
            if report.violation is not None:
                raise report.violation

    return explore_all


def walks(first: int = 0, count: int = 150) -> None:
    for seed in range(first, first + count):
        walk(seed)


def lists() -> None:
    for seed in range(20):
        check_waiting_list(seeded(seed, LIST_OPERATIONS))


def lines() -> None:
    for seed in range(40):
        check_line(seeded(seed, LINE_OPERATIONS), is_fair=seed % 2 == 0)


def one_step_a_turn(test: Callable[[pytest.MonkeyPatch], None]) -> Detector:
    def detect() -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(patch)

    return detect


def _with(test: Callable[[Any], None], value: object) -> Detector:
    return lambda: test(value)


def _function(where: Any) -> FunctionType:
    function = where.fget if isinstance(where, property) else inspect.unwrap(where)
    assert isinstance(function, FunctionType)
    return function


@contextmanager
def planted(defect: Defect) -> Iterator[None]:
    """Let the queue manager have a bug."""
    function = _function(defect.where)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(defect.right) >= 1, f"{defect.name}: the line is not there"
    source = source[source.index("def ") :].replace(defect.right, defect.wrong, 1)
    names: dict[str, Any] = {}
    exec(
        compile(f"from __future__ import annotations\n{source}", defect.name, "exec"),
        function.__globals__,
        names,
    )
    right = function.__code__
    function.__code__ = names[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


def detection(defect: Defect) -> BaseException | None:
    """Return what a planted bug led to; None: it was not detected."""
    with planted(defect):
        for detect in defect.detectors:
            seconds = SECONDS_MAX if defect.is_quick else 0
            previous = signal.signal(signal.SIGALRM, _never_ends)
            signal.alarm(seconds)
            try:
                detect()
            except Exception as error:  # noqa: BLE001
                return error
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, previous)
    return None


def _never_ends(*_: object) -> None:
    raise Violation("progress", "the turn does not end")


def _many_flows() -> None:
    clock = FairClock()
    for number in range(200):
        clock.charge(3, f"flow {number}", 1, 1)
    assert clock.start(3, "flow 0") > 0


def _ttl_before_retry() -> None:
    test_life.test_a_ttl_that_ends_before_the_retry_wins(2, Status.FAILED)


def _load_after(*changes: Input) -> Detector:
    def detect() -> None:
        test_gates.test_a_load_finds_the_starts_that_a_rate_counts_since_it_changed([*changes])

    return detect


# Limits and order of queues (P1, P2, P12).

plant_all(
    explored(c.plain),
    (
        "one execution more than the limit starts",
        gates.look_at,
        "limit - len(queue.holders) => limit + 1 - len(queue.holders)",
    ),
    ("a paused action starts", gates.is_closed, "action.definition.paused or => "),
    ("a raised limit is not looked at", transitions._look_at_all, "state.queues_to_look_at |= => _ = "),
    ("a slot is not released", transitions.release, "del queue.holders[execution] => pass"),
    (
        "what returns comes last",
        transitions._back_to_queue,
        "execution.id, execution.queued_at => state.next_id, execution.queued_at",
    ),
    (
        "what became startable is counted as new each time",
        gates.look_at,
        "startable - queue.startable => startable",
    ),
    ("a queue that has nothing is kept", gates.look_at, "queue.is_idle => False"),
    (
        "the next of a queue is not looked at after a grant",
        decide._take_next,
        "state.changed_queues[queue] = None => pass",
    ),
)
plant_all(
    explored(c.keys),
    ("the limit of a key is ignored", Queue.limit, "settings.has_limit => False"),
    ("one execution more than the total starts", gates.is_open, "held >= total => held > total"),
    ("the last priority goes first", Queue.head, "min( => max("),
    ("a total is not released", transitions.release, "action.held -= 1 => action.held -= 0"),
    (
        "what holds slots does not count when a queue is looked at",
        gates.look_at,
        "limit - len(queue.holders) => limit",
    ),
)
plant(
    "an own limit of none is the limit of the action",
    Queue.limit,
    "settings.max_concurrent if settings.has_limit"
    " => settings.max_concurrent if settings.max_concurrent is not None",
    test_queues.test_a_key_can_have_no_limit_where_its_action_has_one,
)
plant(
    "a lowered limit holds only for queues that were looked at",
    gates.relist,
    "and not entry.member.has_room => and False",
    one_step_a_turn(test_queues.test_a_lowered_limit_holds_before_all_queues_were_looked_at),
)
plant(
    "a queue is forgotten while something is delayed", Queue.is_idle, "or self.delayed => ", explored(c.times)
)
plant(
    "a key's settings are forgotten",
    Queue.is_idle,
    "and self.settings == PLAIN => ",
    test_queues.test_a_key_can_have_a_limit_of_its_own,
)
plant(
    "a full queue counts what is delayed",
    transitions._admit,
    "None if is_delayed else => None if False else",
    test_queues.test_what_is_delayed_is_not_refused_by_a_full_queue,
)
plant(
    "a full queue forgets what can start at once",
    transitions._queue_full,
    "length + 1 - free => length + 1",
    test_queues.test_reject_refuses_what_cannot_start_at_once,
)
plant(
    "a position ignores smaller priorities",
    Queue.ahead_of,
    "other < priority => False",
    test_queues.test_positions_count_smaller_priorities,
)
plant(
    "a new order of the total forgets its queues",
    transitions._set_line,
    "for entry in entries.values() => for entry in ()",
    one_step_a_turn(test_queues.test_a_new_order_of_the_total_keeps_every_queue_in_it),
)
# Units (P11) and who holds them.

plant_all(
    explored(c.resources),
    ("units are not counted", gates.fits, "gate.held + units_of(member, gate) => gate.held"),
    (
        "an execution acquires one unit, whatever it needs",
        decide._acquire,
        "gate.held += use.units => gate.held += 1",
    ),
    (
        "units are not released",
        transitions.release,
        "gate.held -= gate.holders.pop(execution) => gate.holders.pop(execution)",
    ),
    ("released units wake nothing", transitions.release, "state.changed_gates[gate] = None => pass"),
    ("a closed resource lets executions wait for it", gates.is_closed, "gate.definition.paused or => "),
    (
        "a lowered capacity closes for everybody",
        gates.is_closed,
        "gate.definition.capacity < use.units => gate.definition.capacity < 3",
    ),
    (
        "units stay held behind a closed resource",
        transitions._define_resource,
        "if is_reordered or closes: => if is_reordered:",
    ),
    ("a resource that opens is not looked at", transitions._define_resource, "put_in(state, action) => pass"),
)
plant_all(
    explored(c.crossed),
    ("units are held without a free worker slot", decide._hold_units, "or spare > 0 => or True"),
    ("nothing waits between two resources", decide._hold_units, "if may_hold: => if False:"),
    (
        "a holder that ends keeps its slot",
        transitions.release,
        "worker is not None or is_holding => worker is not None",
    ),
    ("a holder passes its gate twice", decide._acquire, "range(member.base, last) => range(last)"),
    ("others pass a holder of another crew", gates._arrive, "isinstance(member, Execution) => False"),
)
plant_all(
    test_gates.test_the_last_holder_gives_back_when_a_worker_slot_is_taken,
    ("holders keep their units when workers become busy", decide._hold_units, "and spare < 0 => and False"),
    (
        "the first holder gives back, not the last",
        decide._hold_units,
        "next(reversed(crew.holding)) => next(iter(crew.holding))",
    ),
)
plant_all(
    explored(c.deleted),
    (
        "a changed route keeps what was held",
        transitions._define_action,
        "_give_back_all(state, action, out) => pass",
    ),
    (
        "a changed rank keeps what was held",
        transitions._define_resource,
        "if is_reordered or closes: => if closes:",
    ),
)
plant(
    "who leaves its gate wakes no other",
    gates._step_back,
    "state.changed_gates[gate] = None => pass",
    explored(c.crossed, c.resources),
)
plant(
    "resources are acquired as each action lists them",
    transitions._set_route,
    "rank_of(used[0]) => 0",
    test_gates.test_resources_are_acquired_by_rank_and_name_whatever_the_action_lists,
)
plant(
    "a holder does not acquire what becomes free",
    decide._hold_units,
    "isinstance(member, Execution) or => ",
    test_gates.test_a_holder_acquires_what_becomes_free_although_no_worker_slot_is_left_for_another_one,
)
plant(
    "the worker slot of a holder that ends is not given to another one",
    transitions.release,
    "state.dirty_pools[action.crew.pool] = None => pass",
    test_gates.test_a_cancelled_holder_releases_everything_and_another_may_hold,
)
# Order at gates (P12), crews and patience.

plant_all(
    explored(c.shared_worker),
    ("another crew's execution is always passed", gates.obstructing, "other.line.rank(each) < rank => False"),
    ("a full crew still obstructs", gates.recount, "(crew.free > 0) != had_free => False"),
)
plant_all(
    test_gates.test_patience_ends_and_units_are_set_aside,
    ("patience never ends", gates.note_passed_over, "state.set_timer(patience => (lambda *_: None)(patience"),
    (
        "patience ends at once",
        gates.note_passed_over,
        "state.after(gate.definition.patience_seconds) => state.now",
    ),
)
plant(
    "another crew's execution is never passed",
    gates.obstructing,
    "if other.crew.has_room else None => ",
    test_gates.test_others_pass_what_no_worker_can_take,
    explored(c.shared_worker),
)
plant(
    "the ids decide before the priority",
    Line.rank,
    "return entry.priority, tag, entry.ticket => return entry.ticket, 0, 0",
    explored(c.priorities, c.fair_resource),
)
plant(
    "what is coming goes before what waits",
    Lane.first,
    "self.line.rank(best) < self.line.rank(first) => True",
    explored(c.crossed, c.priorities, c.resources),
)
plant(
    "a slot that becomes free wakes nothing",
    gates.recount,
    "if free >= before or crew.holding: => if crew.holding:",
    test_runs.test_what_waits_for_a_worker_gets_a_horizon_s_worth_beyond_its_slots,
)
plant(
    "a busy worker lets its other pools keep their units",
    gates.recount,
    "or crew.holding => ",
    test_gates.test_a_holder_gives_back_when_another_pool_takes_the_worker_slot,
)
plant(
    "what is withdrawn stays at the front",
    gates._withdraw,
    "lane.front = None => pass",
    explored(c.crossed),
    walks,
)
plant(
    "what is withdrawn stays in the line of its crew",
    gates._withdraw,
    "_leave_line(state, member) => pass",
    explored(c.priorities, c.crossed, c.resources, c.rates),
)
plant(
    "what is withdrawn wakes nothing",
    gates._withdraw,
    "state.changed_gates[gate] = None => pass",
    explored(c.priorities, c.crossed, c.resources, c.rates),
    walks,
)
plant(
    "patience is spent while no worker takes anything",
    gates.note_passed_over,
    "other.crew.is_live and => ",
    test_gates.test_patience_begins_when_the_pool_is_resumed,
)
plant(
    "an impatient holder gives back for lack of a worker",
    decide._hold,
    "if not is_impatient: => if True:",
    explored(c.patience, alive=4),
)
plant(
    "the impatient hold units of a paused pool",
    transitions._rest,
    "action.holding or => ",
    lambda: test_gates.test_an_impatient_holder_gives_back_when_no_worker_is_left("paused"),
)
plant(
    "what was passed over for long holds nothing",
    decide._hold_units,
    "action.reached > action.base => False",
    explored(c.patience),
)
# Rates (P13).

plant_all(
    explored(c.rates),
    ("a rate is one start too high", RateWindow.left, "self.rate.starts - => self.rate.starts + 1 -"),
    (
        "the window of a rate is too short",
        RateWindow._over_at,
        "self.rate.per_seconds => self.rate.per_seconds - 1",
    ),
    ("starts are not counted", RateWindow.count, "self.instants.append(now) => pass"),
    ("only the first rate counts", decide._grant, "for gate in action.gates => for gate in action.gates[:1]"),
    ("no start is kept", decide._acquire, "gate.window.kept += 1 => pass"),
    ("a start that was kept is lost", transitions.release, "gate.window.kept -= 1 => pass"),
    (
        "a rate is not looked at again when a start is free",
        gates.has_start,
        "state.set_timer(at, about) => pass",
    ),
    ("a rate looks again once only", transitions.pass_time, "gate.window.timer_at = inf => pass"),
)
plant_all(
    _load_after(test_gates.rated_action(9)),
    (
        "a load finds starts that a rate had forgotten before it changed",
        transitions._window,
        "out.forget(window) => pass",
    ),
    ("what a gate has forgotten stays in the journals", writing._journal, " or out.has_forgotten => "),
)
plant(
    "the window of a rate starts anew",
    RateWindow._forget,
    "self.instants.popleft() => self.instants.clear()",
    test_gates.test_a_rate_slides_exactly,
)
plant(
    "a kept start that is used sets no timer for the next one",
    decide._grant,
    "state.changed_gates[gate] = None => pass",
)
plant(
    "a kept start of an action that is used sets no timer for the next one",
    decide._grant,
    "state.changed_actions[action] = None => pass",
    test_gates.test_time_wakes_what_waits_behind_a_kept_start_of_its_action_that_was_used,
)
plant(
    "a kept start moves nothing",
    RateWindow.next_start_at,
    "+ self.kept => ",
    test_gates.test_the_next_start_is_behind_those_that_are_kept,
)
plant(
    "a load finds the starts of an action that was deleted",
    transitions._delete_action,
    "out.forget(action.window) => pass",
    _load_after(test_gates.DELETE_ACTION, test_gates.rated_action(9)),
)
plant(
    "a load finds the starts of a resource that was deleted",
    transitions._delete_resource,
    "out.forget(gate.window) => pass",
    _load_after(test_gates.rated_action(1), test_gates.DELETE_RESOURCE, test_gates.rated_resource(9)),
)
plant(
    "a rate that changes keeps no start for holders",
    transitions._define_resource,
    "gate.window.kept = sum(execution.worker is None for execution in gate.holders) => pass",
    test_gates.test_a_rate_that_a_resource_gets_counts_what_holds_its_units,
)
# Fairness (P14).

plant_all(
    lines,
    ("virtual time stands still", FairClock.charge, "self.virtual[priority] = tag => pass"),
    ("a flow that pauses saves its share", FairClock.start, "self.virtual.get(priority, 0), => 0,"),
    (
        "turns at one priority count at the others",
        FairClock.charge,
        "self.finish[priority, flow] => self.finish[3, flow]",
    ),
    ("flows that were overtaken stay ahead", Line._first_of, "and tag >= virtual => "),
    (
        "flows that are ahead stay level",
        Line._first_of,
        "and finish.get((priority, entry.flow), 0) <= virtual => ",
    ),
    ("flows at the virtual time go before all that are level", Line._first_of, "(tag > virtual or => ("),
    (
        "flows at the virtual time go behind all that are level",
        Line._first_of,
        "level[0][0] < ticket => True",
    ),
    ("a walk through a line stops at a void pair", Line._in_order_of, "entry.ticket == ticket => True"),
    ("a walk through a line meets a member twice", Line._in_order_of, "entry is not last => True"),
    ("a walk through a line is that of the heaps", Line._in_order_of, "self.rank(entry)[1] => virtual"),
    ("a line forgets what it pushes again", Line._push_again, "self._push(entry) => pass"),
    (
        "a line keeps what left",
        Line._first_of,
        "while level and level[0][1].ticket != level[0][0] => while False",
    ),
    ("a compacted line forgets its members", Line._push_all, "self._push(entry) => pass"),
)
plant(
    "a fair line is in order of arrival",
    FairClock.start,
    "return max => return 0 and max",
    test_queues.test_keys_of_a_fair_total_take_turns_by_their_weights,
)
plant(
    "weights are ignored", FairClock.charge, "// weight => ", explored(c.fair_total, c.fair_resource, alive=4)
)
plant(
    "units are ignored",
    FairClock.charge,
    "units * TAG_SCALE => TAG_SCALE",
    test_gates.test_a_fair_resource_counts_units,
)
plant(
    "virtual time runs past those that wait",
    FairClock.charge,
    "self.virtual[priority] = tag => self.virtual[priority] = tag + TAG_SCALE",
    explored(c.fair_total, alive=4),
    lines,
)
plant(
    "a pool charges nothing",
    decide._give,
    "out.charge(pool.clock => (lambda *_: None)(pool.clock",
    explored(c.weighted_pool, alive=4),
)
plant(
    "a total charges nothing",
    decide._take_next,
    "out.charge(action.clock => (lambda *_: None)(action.clock",
    explored(c.fair_total, alive=4),
)
plant(
    "a resource charges nothing",
    decide._acquire,
    "out.charge(gate.clock => (lambda *_: None)(gate.clock",
    explored(c.fair_resource, alive=4),
)
plant(
    "nothing is told of a clock that is dropped",
    transitions._set_line,
    "out.forget(action.clock) => pass",
    test_queues.test_a_gate_that_is_fair_no_more_says_that_its_tags_mean_nothing,
)
plant(
    "what waits at a resource stays in its old order when that changes",
    transitions._define_resource,
    "lane.line = Line(gate.clock) => pass",
    test_gates.test_what_waits_at_a_resource_is_in_fair_order_as_soon_as_the_resource_is,
)
plant(
    "a charged clock is not named",
    Decisions.charge,
    "self.charged.setdefault(clock, {})[priority, flow] = None => pass",
    test_queues.test_a_turn_names_the_fair_gates_and_the_rates_that_it_changed_and_no_others,
)
plant(
    "tags that still count are forgotten",
    FairClock._prune,
    "if tag <= self.virtual => if tag >= self.virtual",
    _many_flows,
)
# Pools and workers.

plant_all(
    explored(c.plain),
    (
        "a worker takes one too many",
        gates.recount,
        "worker.concurrency - worker.used => worker.concurrency - worker.used + 1",
    ),
    ("a draining worker takes offers", gates.recount, "if worker.takes else 0 => "),
    (
        "actions stay with workers that left",
        transitions._worker_gone,
        "reassign_crews(state, worker.pools) => pass",
    ),
    ("a crew without actions is kept", pools.leave, "if not crew.actions: => if False:"),
)
plant(
    "a paused pool starts",
    Crew.has_room,
    "and not self.pool.definition.paused => ",
    explored(c.weighted_pool),
)
plant(
    "a resumed pool sleeps",
    transitions._define_pool,
    "put_in(state, action) => pass",
    explored(c.weighted_pool),
    walks,
)
plant(
    "a worker serves what it has no code for",
    Worker.serves,
    "action.ref in self.actions => True",
    test_pools.test_an_action_that_no_worker_serves_blocks_nothing,
)
plant(
    "the most flexible worker goes first",
    gates.offer,
    "= len(worker.crews) => = -len(worker.crews)",
    test_pools.test_the_least_flexible_worker_goes_first,
)
plant(
    "one worker gets everything",
    gates.offer,
    "1 - worker.free / worker.concurrency => 0",
    test_pools.test_work_is_spread_over_equal_workers,
)
plant(
    "one pool keeps a shared worker",
    pools.served,
    "len(worker.pools) > 1 => False",
    test_pools.test_pools_take_turns_at_a_shared_worker,
)
plant(
    "turns of pools ignore the worker",
    decide._in_turn,
    "for name in worker.pools => for name in ()",
    test_pools.test_a_pool_with_workers_of_its_own_still_gets_its_turn_at_a_shared_one,
)
plant(
    "only the first crew of a pool is looked at",
    decide._next_at,
    "if len(first) > 1: => if False:",
    explored(c.crews, alive=4),
)
plant(
    "holders stay in their old crew",
    pools.assign_crew,
    "before.holding.pop(execution, 0) is None => False",
    explored(c.crossed),
    walks,
)
# Runs.

plant_all(
    explored(c.runs, alive=4),
    (
        "a queue moves before its run was drained",
        gates.look_at,
        "limit - len(queue.holders)"
        " => limit - sum(count for worker, count in queue.at.items() if worker.is_taking)",
    ),
    ("a draining worker gets a run", runs.missing, "home.takes and => "),
)
plant_all(
    explored(c.runs_beside),
    ("a run passes what waits for its worker", decide._extend_runs, "is_contended(worker) => False"),
    (
        "a run that others stopped stays so",
        decide._extend_runs,
        "            continue\n        del =>             pass\n        del",
    ),
)
plant(
    "one too many of a limit, at a second worker",
    runs.missing,
    "len(queue.at) != 1 => not queue.at",
    test_runs.test_a_queue_has_a_run_at_one_worker_only,
    explored(c.runs),
)
plant(
    "a run is out of order",
    decide._extend_runs,
    "priority, ticket = queue.head()"
    " => priority = max(queue.waiting); ticket = queue.waiting[priority].first()",
    explored(c.urgent, alive=4, states_max=4000),
)
plant("a run is never extended", gates.look_at, "state.runs[queue] = None => pass", explored(c.runs))
plant(
    "a run is extended after each end",
    runs.missing,
    "pending <= _REFILL * most => pending < most",
    test_runs.test_a_run_is_extended_when_a_part_of_it_was_used_and_not_for_each_end,
)
plant(
    "a run is longer than a horizon",
    runs._ahead,
    "slots * action.pace => slots * action.pace + 1",
    test_runs.test_a_queue_of_a_short_action_gets_a_horizon_s_worth_beyond_its_limit,
)
plant(
    "a worker with too few slots gets a run",
    runs.missing,
    "home.concurrency >= limit and => ",
    test_runs.test_a_worker_with_fewer_slots_than_the_limit_gets_no_run,
)
plant(
    "a worker that answered hears of no change",
    transitions._worker_changed,
    "if each.is_answer: => if False:",
    test_runs.test_a_worker_that_answered_is_told_what_it_may_have_missed,
)
plant(
    "a recall that was missed is not repeated",
    runs.tell,
    "or any(each.queue is queue for each in worker.recalled) => ",
    test_runs.test_a_recall_that_is_not_answered_is_repeated_to_a_worker_that_answered,
)
plant(
    "a paused action extends its run",
    runs.missing,
    "or action.is_closed => ",
    test_runs.test_a_paused_action_gets_nothing_when_its_run_is_back,
)
for _name, _right, _more in (
    ("a total", "action.max_concurrent_total is None and", {"max_concurrent_total": 9}),
    ("resources", "not action.uses and", {"uses": uses("r")}),
    ("a rate", "and action.rate is None", {"rate": Rate(starts=99, per_seconds=1)}),
    ("no second start", 'action.on_worker_lost == "requeue" and', {"on_worker_lost": "abandon"}),
    ("no reclaim", "and action.max_reclaims > 0", {"max_reclaims": 0}),
    ("no wish for runs", "action.runs and", {"runs": False}),
):
    _test = test_runs.test_an_action_with_gates_or_that_may_start_only_once_has_no_runs
    plant(f"an action with {_name} has runs", runs.may_have_runs, f"{_right} => ", _with(_test, _more))

plant_all(
    explored(c.runs),
    ("a run takes worker slots", runs.add_surplus, "worker.surplus += 1 => worker.surplus += 0"),
    (
        "the worker slots of a run are free for ever",
        runs._set_surplus,
        "if surplus != queue.surplus => if False",
    ),
    (
        "what lasted is counted for ever",
        transitions.release,
        "worker.lasting -= not execution.is_short => pass",
    ),
    ("what stalls is not noticed", decide._extend_runs, "watch(state => (lambda *_: None)(state"),
)
plant_all(
    test_runs.test_what_waits_at_a_busy_worker_is_recalled,
    ("what stalls at a full worker is not noticed", decide._fill, "watch(state => (lambda *_: None)(state"),
    ("only runs beyond a limit are recalled", runs.recall_stalled, "is_full or => "),
)
plant_all(
    test_runs.test_what_a_lost_worker_had_is_granted_singly_until_it_has_ended_once,
    (
        "what was at a lost worker is in a run again",
        transitions._worker_gone,
        "|= each.is_counted => |= False",
    ),
    ("what is suspect stays so", transitions._ended, "execution.is_suspect = False => pass"),
)
plant(
    "an action that lasts has runs",
    runs.set_pace,
    "seconds < HORIZON_SECONDS => True",
    test_runs.test_an_action_of_which_nothing_has_ended_or_that_lasts_has_no_runs,
)
plant(
    "one short attempt decides",
    runs.learn,
    "_LEARNING * => ",
    test_runs.test_the_mean_of_the_durations_decides,
)
plant(
    "nothing joins a run",
    runs.missing,
    "pending < 2 * most and => False and",
    test_runs.test_what_is_more_urgent_joins_the_run,
)
plant(
    "without end joins a run",
    runs.missing,
    "pending < 2 * most and => ",
    test_runs.test_urgent_arrivals_are_bounded_too,
)
plant(
    "a lowered limit lets what runs wait",
    runs.shrink,
    "min(queue.surplus, max( => max(0, max(",
    test_runs.test_a_lowered_limit_gives_no_slot_of_what_runs_to_others,
)
plant("a load forgets runs", loading.state_of, "resume(state) => pass", explored(c.runs_loaded))
plant(
    "a queue does not gather",
    decide._worker_for,
    "home is not None and => False and",
    test_runs.test_a_spread_queue_gathers_and_then_has_a_run,
)
plant(
    "what lasts is passed at its worker",
    decide._grant_ahead,
    "passed.update(crew.workers) => pass",
    test_runs.test_what_lasts_is_passed_by_no_other_crew_at_its_worker,
)
plant(
    "short ones wait behind what lasts",
    runs.room_ahead,
    "- worker.lasting => ",
    test_runs.test_nothing_waits_behind_what_lasts,
)
plant(
    "one pool fills a shared worker",
    decide._has_turn,
    "if state.pools.get(name) in waiting => if name == pool.definition.name",
    test_runs.test_what_lasts_gets_its_turn_at_a_worker_that_pools_share,
)
plant(
    "the other pool of a full worker sleeps",
    decide._give,
    "if len(worker.pools) > 1: => if False:",
    test_runs.test_pools_fill_a_worker_that_they_share_whatever_each_has_elsewhere,
)
plant(
    "what left its line still keeps others waiting",
    gates._leave_line,
    "state.dirty_pools[crew.pool] = None => pass",
    _with(test_runs.test_what_waited_behind_what_lasts_is_at_the_worker_when_that_is_cancelled, "default"),
)
plant(
    "what left its line still keeps another pool waiting",
    gates._leave_line,
    "_wake_pools(state, crew) => pass",
    _with(test_runs.test_what_waited_behind_what_lasts_is_at_the_worker_when_that_is_cancelled, "gpu"),
)
plant(
    "a crew whose workers are free has its turn at those that are full",
    decide._has_turn,
    "and crew.free <= 0 => ",
    test_runs.test_a_pool_with_a_free_slot_elsewhere_has_no_turn_at_a_full_worker,
)
plant(
    "a run goes on after a recall",
    runs.recall_stalled,
    "set_pace(action) => pass",
    test_runs.test_what_stalled_gets_no_run_when_it_is_back,
)
plant(
    "a recall is not repeated",
    runs.recall_stalled,
    "watch(state, worker, HORIZON_SECONDS) => pass",
    explored(c.stalls),
)
plant(
    "what never started counts as reclaimed",
    transitions._worker_gone,
    "and execution not in pending => ",
    test_runs.test_what_had_not_started_at_a_lost_worker_does_not_count_as_reclaimed,
)
plant(
    "an outage makes everything suspect",
    transitions._worker_gone,
    "|= each.is_counted => |= True",
    test_runs.test_the_loss_of_a_worker_in_an_outage_makes_nothing_suspect,
)
plant(
    "what is suspect is in the middle of a run",
    decide._extend_runs,
    "if _is_suspect(state, ticket): => if False:",
    test_runs.test_a_run_ends_before_what_is_suspect,
)
# Grants, reports and ends (P3, P6).

plant_all(
    explored(c.plain),
    (
        "a number of a grant is used again",
        decide._give,
        "state.grant_counter += 1 => state.grant_counter += not execution.attempt",
    ),
    (
        "the old attempt of a lost worker is not stopped",
        transitions._reclaim,
        "out.asked.append( => (lambda *_: None)(",
    ),
    (
        "what a lost worker held is forgotten",
        transitions._worker_gone,
        "_reclaim(state => (lambda *_: None)(state",
    ),
    (
        "a cancel frees what a worker still runs",
        transitions._cancel,
        "if execution.worker is None: => if True:",
    ),
)
plant(
    "a report of an old grant counts",
    transitions._reported,
    "and execution.grant == grant => ",
    test_life.test_a_report_of_an_old_grant_changes_nothing,
)
plant(
    "an abandoned action is run again",
    transitions._reclaim,
    'definition.on_worker_lost == "abandon" => False',
    test_pools.test_an_abandoned_execution_ends_with_its_worker,
)
plant(
    "what may run once only runs again after it was returned",
    transitions._returned,
    "has_started and => False and",
    lambda: test_pools.test_what_may_run_once_only_ends_when_it_is_returned_after_its_start("the return"),
)
plant(
    "only the return says that it had started",
    transitions._returned,
    "each.had_started or execution.started_at is not None => each.had_started",
    lambda: test_pools.test_what_may_run_once_only_ends_when_it_is_returned_after_its_start(
        "an earlier report"
    ),
)
plant(
    "reclaims never end",
    transitions._reclaim,
    "execution.reclaims += is_counted => pass",
    lambda: test_pools.test_reclaims_are_used_up_by_losses_that_count(True),
)
plant(
    "losses in an outage of the leader count",
    transitions._reclaim,
    "execution.reclaims += is_counted => execution.reclaims += 1",
    test_pools.test_losses_in_an_outage_use_up_no_reclaim,
)
plant(
    "a reclaim wins over a cancel",
    transitions._reclaim,
    "execution.cancel_reason is not None => False",
    test_pools.test_a_cancel_wins_over_a_reclaim,
)
plant(
    "a retry wins over a cancel",
    transitions._retried_at,
    "execution.cancel_reason is not None => False",
    test_life.test_a_cancel_wins_over_a_retry,
)
plant(
    "a retry wins over the ttl",
    transitions._retried_at,
    "if due_at < execution.expires_at else None => ",
    _ttl_before_retry,
)
plant(
    "what expired at a worker starts again",
    transitions._back_to_queue,
    "execution.expires_at <= state.now => False",
    test_pools.test_a_reclaimed_execution_whose_time_is_over_expires,
)
plant(
    "timeouts are retried",
    transitions._ended,
    "and each.status is Status.FAILED => ",
    test_life.test_only_failures_are_retried,
)
plant(
    "the worker's text wins over the operator's reason",
    transitions._ended,
    "each.status is Status.CANCELLED => False",
    test_life.test_the_reason_of_the_operator_wins_over_the_text_of_the_worker,
)
plant(
    "a second reason replaces the first",
    transitions._cancel,
    "if execution.cancel_reason is None: => if True:",
    test_life.test_a_cancel_of_what_is_at_a_worker_only_asks,
)
plant(
    "an action is deleted while it runs",
    transitions._delete_action,
    "not running and => ",
    explored(c.deleted),
)
plant(
    "deleting forgets the totals",
    transitions._delete_action,
    "action.enqueued, action.completed => 0, action.completed",
    test_life.test_totals_survive_deletion_and_revival,
)
plant(
    "a deleted action keeps its resources",
    transitions._delete_action,
    "_set_route(action, ()) => pass",
    test_life.test_a_resource_of_a_deleted_action_can_be_deleted,
)
plant(
    "the ledger does not hear of an end",
    transitions.finish,
    "out.changed[execution.id] = None => pass",
    test_life.test_the_ledger_hears_of_what_is_more_than_waiting_or_granted,
)
# Timers.

plant_all(
    explored(c.times),
    ("what is due is not woken", transitions._delay, "state.set_timer(due_at, execution) => pass"),
    (
        "a list does not expire",
        transitions.enqueue,
        "state.set_timer(entry.expires_at, (queue, priority)) => pass",
    ),
    ("a holder does not expire", decide._hold, "state.set_timer(execution.expires_at, execution) => pass"),
)
plant(
    "a list expires once only",
    transitions._expire,
    "state.set_timer(waiting.soonest, (queue, priority)) => pass",
)
plant(
    "old timers are never removed",
    State.void_timer,
    "self.timers_void += 1 => pass",
    test_life.test_timers_that_mean_nothing_any_more_are_removed,
)
plant(
    "the expiry of a holder is taken for an old timer",
    state.has_meaning,
    "execution.base > 0 and => False and",
    explored(c.times, alive=2, states_max=3000),
)
plant(
    "a ttl counts from the request, not from the enqueue",
    transitions._wake,
    "state.after(execution.ttl_seconds) => execution.ttl_seconds",
    test_life.test_a_ttl_counts_from_the_first_enqueue,
)
plant(
    "time goes back",
    decide.decide,
    "max(state.now, round(now, 6)) => now",
    test_life.test_now_never_goes_back,
)
# Waiting lists.

plant_all(
    lists,
    ("a returned execution is appended", WaitingList.add, "entry.id > chunk.ids[-1] => True"),
    ("a chunk never splits", WaitingList._insert, "self._chunks.insert(number + 1, chunk.split()) => pass"),
    ("a split loses the middle", _Chunk.split, "values[half:] => values[half + 1:]"),
    (
        "positions are stale after a removal",
        WaitingList.remove,
        "min(self._exact_to, number + 1) => self._exact_to",
    ),
    (
        "positions are stale after a return",
        WaitingList._insert,
        "min(self._exact_to, number + 1) => self._exact_to",
    ),
    ("positions forget what was taken", WaitingList.take_first, "self._starts[0] += 1 => pass"),
    ("an empty chunk is kept", WaitingList.take_first, "if not chunk.ids: => if False:"),
    ("a removal drops the neighbour", WaitingList.remove, ".remove(index) => .remove(index - 1)"),
    ("the length is not kept", WaitingList.remove, "self.length -= 1 => pass"),
    (
        "expiry looks at the first chunk only",
        WaitingList.expired,
        "chunk.soonest > now: => chunk.soonest > now or found:",
    ),
    (
        "the next expiry is forgotten",
        WaitingList.expired,
        "self.soonest = min((chunk.soonest => _ = min((chunk.soonest",
    ),
    (
        "an earlier expiry is not noticed",
        WaitingList.add,
        "self.soonest = min(self.soonest, entry.expires_at) => pass",
    ),
)
