"""The boundaries of each rule: one instant, one slot, one window to either side."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.stress.histories import WORKERS, Life, at, broken, fault, hand_made
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.metrics import measure_scenario
from turnstile.stress.recording import NONE, LimitChange, Outcome, Recording, RunEnd
from turnstile.stress.scenario import FaultKind


def found(recording: Recording, rule: Rule) -> Finding:
    return next(finding for finding in check_recording(recording).findings if finding.rule is rule)


def changed_limit(limit: int | None, requested: float, answered: float) -> LimitChange:
    return LimitChange(action=0, limit=limit, asked_at=at(requested), answered_at=at(answered))


def test_lowering_a_limit_takes_no_slot_away() -> None:
    lives = [Life(id=n, since=0, granted=1, ended=20 + n) for n in (1, 2, 3)]
    lowered = (changed_limit(1, 5, 6),)
    last = Life(id=4, since=8, granted=23, ended=30)
    assert broken(hand_made(*lives, last, limit=3, limit_changes=lowered)) == set()
    too_soon = replace(last, granted=22.5, start=24, worker=1)
    assert broken(hand_made(*lives, too_soon, limit=3, limit_changes=lowered)) == {Rule.LIMIT_HELD}


def test_between_request_and_response_either_limit_may_apply() -> None:
    lives = Life(id=1, since=0, granted=1, ended=30), Life(id=2, since=2, granted=10, ended=30, worker=1)
    for requested, answered, rules in (
        (9, 11, set()),
        (10, 12, set()),
        (8, 10, set()),
        (10.5, 12, {Rule.LIMIT_HELD, Rule.LIMIT_RUN}),
    ):
        changes = (changed_limit(2, requested, answered),)
        assert broken(hand_made(*lives, limit_changes=changes)) == rules, (requested, answered)
    lowered = (changed_limit(1, 5, 10),)
    assert broken(hand_made(*lives, limit=2, limit_changes=lowered)) == set()


def test_a_raised_limit_must_be_used() -> None:
    lives = Life(id=1, since=0, granted=1, ended=9_000), Life(id=2, since=0, granted=3_000, ended=9_000)
    assert broken(hand_made(*lives, limit_changes=(changed_limit(2, 900, 1_100),))) == set()
    assert broken(hand_made(*lives, limit_changes=(changed_limit(2, 700, 900),))) == {Rule.NO_IDLE_SLOT}


def test_at_limit_0_no_grant_is_allowed_and_no_slot_is_idle() -> None:
    waiting = Life(id=1, since=0)
    stuck = broken(hand_made(waiting, limit=0, ended_at=at(9_000)))
    assert stuck == {Rule.NOTHING_STUCK}
    assert Rule.LIMIT_HELD in broken(hand_made(Life(id=1, since=0, granted=1, ended=2), limit=0))


def test_a_reclaimed_execution_waits_again_from_its_reclaim_on() -> None:
    reclaimed_first = Life(id=1, since=0, granted=1, ended=100, outcome=Outcome.RECLAIMED)
    waiting = replace(reclaimed_first, since=100, granted=None, ended=None, attempt=2)

    def beside(granted: float) -> Recording:
        other = Life(id=2, since=0, granted=granted, ended=200)
        return hand_made(reclaimed_first, waiting, other, limit=2)

    assert broken(beside(50)) == {Rule.NOTHING_STUCK}
    assert broken(beside(150)) == {Rule.NOTHING_STUCK, Rule.GRANTED_IN_ORDER}


def reclaimed(stop: float | None, run_end: RunEnd = RunEnd.STOPPED) -> Recording:
    """An execution that was reclaimed at 100 ms and granted again, at a limit of 1."""
    first = Life(id=1, since=0, granted=1, ended=100, outcome=Outcome.RECLAIMED, worker=1)
    again = Life(id=1, since=100, granted=101, ended=9_000, attempt=2)
    return hand_made(replace(first, stop=stop, run_end=run_end), again)


def test_a_run_may_outlive_its_reclaim_only_for_the_documented_time() -> None:
    assert broken(reclaimed(stop=4_099)) == set()
    assert broken(reclaimed(stop=4_200)) == {Rule.LIMIT_RUN, Rule.NOTHING_UNEXPECTED}


def test_a_paused_worker_may_run_on_until_it_notices_the_pause() -> None:
    late = reclaimed(stop=8_500)
    assert broken(replace(late, faults=(fault(FaultKind.PAUSE_WORKER, 50, 8_000),))) == set()
    for other in (fault(FaultKind.PAUSE_WORKER, 50, 7_000), fault(FaultKind.KILL_WORKER, 50, 8_000)):
        assert Rule.LIMIT_RUN in broken(replace(late, faults=(other,)))
    other_worker = replace(fault(FaultKind.PAUSE_WORKER, 50, 8_000), lost_worker=WORKERS[0])
    assert Rule.LIMIT_RUN in broken(replace(late, faults=(other_worker,)))


def test_a_run_with_an_unknown_end_counts_until_its_attempt_ends_and_is_not_checked() -> None:
    unseen = reclaimed(stop=None, run_end=RunEnd.UNKNOWN)
    assert broken(unseen) == set()
    assert found(unseen, Rule.LIMIT_RUN).checked == 1
    beside = Life(id=2, since=0, granted=50, ended=60, worker=1)
    both = hand_made(
        Life(id=1, since=0, granted=1, ended=100, run_end=RunEnd.UNKNOWN, outcome=Outcome.RECLAIMED),
        Life(id=1, since=100, granted=101, ended=200, attempt=2),
        beside,
    )
    assert broken(both) == {Rule.LIMIT_HELD, Rule.LIMIT_RUN}


def test_with_inexact_clocks_only_certain_overlaps_count() -> None:
    def overlapping(stop: float, error_ms: int) -> set[Rule]:
        lives = Life(id=1, since=0, granted=1, stop=stop, ended=20), Life(id=2, since=0, granted=20, ended=60)
        recording = hand_made(*lives, clock_error_ns=error_ms * 1_000_000)
        return broken(recording) - {Rule.NOTHING_UNEXPECTED}

    assert overlapping(22, 0) == {Rule.LIMIT_RUN}
    assert overlapping(22, 1) == set()
    assert overlapping(23, 1) == {Rule.LIMIT_RUN}


def test_starts_within_the_clock_error_have_no_order_between_workers() -> None:
    def started(start: float, error_ms: int, worker: int = 1) -> set[Rule]:
        lives = (
            Life(id=1, since=0, granted=1, start=start, stop=start, ended=20),
            Life(id=2, since=0, granted=20, start=20, stop=20, ended=40, worker=worker),
        )
        return broken(hand_made(*lives, clock_error_ns=error_ms * 1_000_000))

    assert started(22, 1, worker=0) == {Rule.STARTED_IN_ORDER}

    assert started(22, 0) == {Rule.STARTED_IN_ORDER}
    assert started(22, 1) == set()
    assert started(23, 1) == {Rule.STARTED_IN_ORDER}


def test_executions_outside_the_queues_of_the_scenario_are_only_unexpected() -> None:
    ours = Life(id=1, since=0, granted=1, ended=9_000)
    foreign = [Life(id=n, since=0, granted=5_000 - n, ended=9_000, queue=NONE) for n in (2, 3)]
    recording = hand_made(ours, *foreign)
    recording.executions["number"][1:] = recording.runs["number"][1:] = NONE
    recording = replace(recording, orders=recording.orders[:1])
    assert broken(recording) == {Rule.NOTHING_UNEXPECTED}
    assert found(recording, Rule.NOTHING_UNEXPECTED).broken == 2
    metrics = measure_scenario(recording)
    assert (metrics.peak_slots, metrics.peak_runs) == (1, 1)


def test_repeated_requests_are_compared_with_all_others() -> None:
    def sent(sendings: list[int], ids: list[int]) -> set[Rule]:
        recording = hand_made(*(Life(id=n, since=0, granted=1, ended=2) for n in sorted(ids)), limit=None)
        recording.orders["sendings"], recording.orders["execution_id"] = sendings, ids
        numbers = [ids.index(n) for n in sorted(ids)]
        recording.executions["number"] = recording.runs["number"] = numbers
        return broken(recording)

    assert sent([1, 2, 2, 1], [1, 3, 2, 4]) == set()
    assert sent([1, 2, 1, 1], [1, 3, 2, 4]) == {Rule.ADMITTED_IN_ORDER}
    assert sent([1, 1, 2, 1], [1, 3, 2, 4]) == {Rule.ADMITTED_IN_ORDER}


def idle(seconds: float, **rest: Any) -> set[Rule]:
    """Return the broken rules of a slot that is free for so long while an execution waits."""
    waiting = Life(id=2, since=5, granted=10 + seconds * 1000, ended=20 + seconds * 1000)
    return broken(hand_made(Life(id=1, since=0, granted=1, ended=10), waiting, **rest))


def test_a_slot_may_be_idle_for_the_allowed_time() -> None:
    assert idle(2.0) == set()
    assert idle(2.1) == {Rule.NO_IDLE_SLOT}
    assert idle(2.1, idle_allowed_seconds=2.2) == set()


def test_no_slot_is_idle_before_the_actions_are_resumed() -> None:
    assert idle(9.0, opened_at=at(8_000)) == set()
    assert idle(9.0, opened_at=at(5_000)) == {Rule.NO_IDLE_SLOT}


@pytest.mark.parametrize(
    ("kind", "settling_seconds"), [(FaultKind.KILL_EXECUTOR, 6), (FaultKind.PURGE_QUEUES, 13)]
)
def test_idle_slots_are_excused_during_a_fault_and_until_it_has_settled(
    kind: FaultKind, settling_seconds: int
) -> None:
    faults = (fault(kind, 1_000, 1_000),)
    assert idle(1 + settling_seconds + 1.9, faults=faults) == set()
    assert idle(1 + settling_seconds + 2.1, faults=faults) == {Rule.NO_IDLE_SLOT}
    assert idle(2.1, faults=(fault(kind, 5_000, 6_000),)) == {Rule.NO_IDLE_SLOT}


def test_idle_slots_are_excused_while_the_worker_capacity_is_in_use() -> None:
    others = [Life(id=n, since=0, granted=1, ended=8_000, queue=1) for n in (3, 4)]
    late = Life(id=2, since=5, granted=8_500, ended=9_000)
    recording = hand_made(Life(id=1, since=0, granted=1, ended=10), late, *others, limit=2, actions=2)
    assert broken(recording) == {Rule.NO_IDLE_SLOT}
    assert broken(replace(recording, worker_capacity=2)) == set()
    assert broken(replace(recording, worker_capacity=3)) == {Rule.NO_IDLE_SLOT}


def test_without_a_limit_the_time_between_grants_is_checked() -> None:
    in_turns = [Life(id=n, since=0, granted=1_500 * n, ended=10_000) for n in (1, 2, 3, 4)]
    assert broken(hand_made(*in_turns, limit=None)) == set()
    assert broken(hand_made(*in_turns, limit=9)) == {Rule.NO_IDLE_SLOT}
    late = replace(in_turns[-1], granted=7_000)
    assert broken(hand_made(*in_turns[:-1], late, limit=None)) == {Rule.NO_IDLE_SLOT}
