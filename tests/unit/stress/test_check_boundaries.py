"""Where a rule begins and where it ends: one instant, one slot, one window to either side."""

from dataclasses import replace

import pytest

from tests.unit.stress.hand_made import Life, at, broken, fault, hand_made
from tests.unit.stress.simulated_queue import WORKERS
from turnstile.stress.check.judge import judge
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.figures.measure import measure
from turnstile.stress.recording import ActionCounters, LimitChange, Recording
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import NONE, Outcome, RunEnd


def found(recording: Recording, rule: Rule) -> Finding:
    return next(finding for finding in judge(recording).findings if finding.rule is rule)


def changed_limit(limit: int | None, asked: float, answered: float) -> LimitChange:
    return LimitChange(action=0, limit=limit, asked_at=at(asked), answered_at=at(answered))


def test_a_slot_that_is_freed_makes_room_at_that_very_instant() -> None:
    touching = Life(id=1, since=0, granted=1, ended=5), Life(id=2, since=0, granted=5, ended=9)
    assert broken(hand_made(*touching)) == set()


@pytest.mark.parametrize(("ids", "rules"), [((1, 2), set()), ((2, 1), set())])
def test_grants_of_one_instant_are_in_the_order_of_their_ids(ids: tuple[int, int], rules: set[Rule]) -> None:
    lives = [Life(id=execution_id, since=0, granted=3, ended=6 + execution_id) for execution_id in ids]
    assert broken(hand_made(*lives, limit=2)) == rules


def test_two_of_one_instant_may_be_too_many() -> None:
    lives = [Life(id=execution_id, since=0, granted=3, ended=6) for execution_id in (1, 2, 3)]
    assert found(hand_made(*lives, limit=2), Rule.LIMIT_HELD).broken == 1


def test_who_joins_the_line_at_the_instant_of_a_grant_may_have_been_passed() -> None:
    def joining(since: float) -> Recording:
        return hand_made(
            Life(id=1, since=since, granted=6, ended=7), Life(id=2, since=0, granted=5, ended=6), limit=2
        )

    assert broken(joining(5.001)) == set()
    assert broken(joining(5.0)) == {Rule.GRANTED_IN_ORDER}


def test_a_limit_that_is_lowered_while_full_takes_nothing_away() -> None:
    lives = [Life(id=n, since=0, granted=1, ended=20 + n) for n in (1, 2, 3)]
    lowered = (changed_limit(1, 5, 6),)
    last = Life(id=4, since=8, granted=23, ended=30)
    assert broken(hand_made(*lives, last, limit=3, limit_changes=lowered)) == set()
    too_soon = replace(last, granted=22.5, start=24)
    assert broken(hand_made(*lives, too_soon, limit=3, limit_changes=lowered)) == {Rule.LIMIT_HELD}


def test_between_asking_and_answer_either_limit_may_be_in_force() -> None:
    lives = Life(id=1, since=0, granted=1, ended=30), Life(id=2, since=2, granted=10, ended=30)
    for asked, answered, rules in (
        (9, 11, set()),
        (10, 12, set()),
        (8, 10, set()),
        (10.5, 12, {Rule.LIMIT_HELD, Rule.LIMIT_RUN}),
    ):
        changes = (changed_limit(2, asked, answered),)
        assert broken(hand_made(*lives, limit_changes=changes)) == rules, (asked, answered)
    lowered = (changed_limit(1, 5, 10),)
    assert broken(hand_made(*lives, limit=2, limit_changes=lowered)) == set()


def test_a_limit_that_was_raised_must_be_used() -> None:
    lives = Life(id=1, since=0, granted=1, ended=9_000), Life(id=2, since=0, granted=3_000, ended=9_000)
    assert broken(hand_made(*lives, limit_changes=(changed_limit(2, 900, 1_100),))) == set()
    assert broken(hand_made(*lives, limit_changes=(changed_limit(2, 700, 900),))) == {Rule.NO_IDLE_SLOT}


def test_what_was_granted_before_the_limit_was_lowered_may_start_after_it() -> None:
    lives = Life(id=1, since=0, granted=1, ended=30), Life(id=2, since=0, granted=2, start=8, ended=30)
    assert broken(hand_made(*lives, limit=2, limit_changes=(changed_limit(1, 4, 5),))) == set()


def test_a_limit_that_is_lifted_lets_all_go() -> None:
    lives = [Life(id=n, since=0, granted=1 if n == 1 else 10, ended=30) for n in range(1, 9)]
    assert broken(hand_made(*lives, limit_changes=(changed_limit(None, 9, 11),))) == set()


def test_under_a_limit_of_nothing_nothing_may_be_granted_and_nobody_waits_in_vain() -> None:
    waiting = Life(id=1, since=0)
    stuck = broken(hand_made(waiting, limit=0, ended_at=at(9_000)))
    assert stuck == {Rule.NOTHING_STUCK}
    assert Rule.LIMIT_HELD in broken(hand_made(Life(id=1, since=0, granted=1, ended=2), limit=0))


def test_who_is_still_waiting_has_been_passed_by_all_behind_it() -> None:
    passed = hand_made(Life(id=1, since=0), Life(id=2, since=0, granted=2, ended=9), ended_at=at(10))
    assert broken(passed) == {Rule.GRANTED_IN_ORDER, Rule.NOTHING_STUCK}
    assert "while execution 1 waited" in found(passed, Rule.GRANTED_IN_ORDER).examples[0]


def test_who_was_taken_back_and_waits_to_the_end_waits_from_then_on() -> None:
    taken_back = Life(id=1, since=0, granted=1, ended=100, outcome=Outcome.RECLAIMED)
    waiting = replace(taken_back, since=100, granted=None, ended=None, attempt=2)

    def beside(granted: float) -> Recording:
        other = Life(id=2, since=0, granted=granted, ended=200)
        return hand_made(taken_back, waiting, other, limit=2)

    assert broken(beside(50)) == {Rule.NOTHING_STUCK}
    assert broken(beside(150)) == {Rule.NOTHING_STUCK, Rule.GRANTED_IN_ORDER}


def reclaimed(stop: float | None, run_end: RunEnd = RunEnd.STOPPED) -> Recording:
    """One that was taken back at 100 ms and granted again, at a limit of 1."""
    first = Life(id=1, since=0, granted=1, ended=100, outcome=Outcome.RECLAIMED, worker=1)
    again = Life(id=1, since=100, granted=101, ended=9_000, attempt=2)
    return hand_made(replace(first, stop=stop, run_end=run_end), again)


def test_a_run_may_outlive_its_reclaim_for_the_documented_time_and_no_longer() -> None:
    assert broken(reclaimed(stop=4_099)) == set()
    assert broken(reclaimed(stop=4_200)) == {Rule.LIMIT_RUN, Rule.NOTHING_UNEXPECTED}


def test_a_paused_worker_may_go_on_until_it_has_noticed() -> None:
    late = reclaimed(stop=8_500)
    assert broken(replace(late, faults=(fault(FaultKind.PAUSE_WORKER, 50, 8_000),))) == set()
    for other in (fault(FaultKind.PAUSE_WORKER, 50, 7_000), fault(FaultKind.KILL_WORKER, 50, 8_000)):
        assert Rule.LIMIT_RUN in broken(replace(late, faults=(other,)))
    somebody_else = replace(fault(FaultKind.PAUSE_WORKER, 50, 8_000), lost_worker=WORKERS[0])
    assert Rule.LIMIT_RUN in broken(replace(late, faults=(somebody_else,)))


def test_a_run_whose_end_nobody_saw_counts_while_its_attempt_does_and_is_not_looked_at() -> None:
    unseen = reclaimed(stop=None, run_end=RunEnd.UNKNOWN)
    assert broken(unseen) == set()
    assert found(unseen, Rule.LIMIT_RUN).looked_at == 1
    beside = Life(id=2, since=0, granted=50, ended=60)
    both = hand_made(
        Life(id=1, since=0, granted=1, ended=100, run_end=RunEnd.UNKNOWN, outcome=Outcome.RECLAIMED),
        Life(id=1, since=100, granted=101, ended=200, attempt=2),
        beside,
    )
    assert broken(both) == {Rule.LIMIT_HELD, Rule.LIMIT_RUN}


def test_clocks_that_may_be_off_leave_what_is_certain() -> None:
    def overlapping(stop: float, error_ms: int) -> set[Rule]:
        lives = Life(id=1, since=0, granted=1, stop=stop, ended=20), Life(id=2, since=0, granted=20, ended=60)
        recording = hand_made(*lives, clock_error_ns=error_ms * 1_000_000)
        return broken(recording) - {Rule.NOTHING_UNEXPECTED}

    assert overlapping(22, 0) == {Rule.LIMIT_RUN}
    assert overlapping(22, 1) == set()
    assert overlapping(23, 1) == {Rule.LIMIT_RUN}


def test_starts_within_the_error_of_the_clocks_have_no_order() -> None:
    def started(start: float, error_ms: int) -> set[Rule]:
        lives = (
            Life(id=1, since=0, granted=1, start=start, stop=start, ended=20),
            Life(id=2, since=0, granted=20, start=20, stop=20, ended=40),
        )
        return broken(hand_made(*lives, clock_error_ns=error_ms * 1_000_000))

    assert started(22, 0) == {Rule.STARTED_IN_ORDER}
    assert started(22, 1) == set()
    assert started(23, 1) == {Rule.STARTED_IN_ORDER}


def test_strangers_outside_the_queues_of_the_stage_are_unexpected_and_no_more() -> None:
    ours = Life(id=1, since=0, granted=1, ended=9_000)
    strangers = [Life(id=n, since=0, granted=5_000 - n, ended=9_000, queue=NONE) for n in (2, 3)]
    recording = hand_made(ours, *strangers)
    recording.executions["number"][1:] = recording.runs["number"][1:] = NONE
    recording = replace(recording, orders=recording.orders[:1])
    assert broken(recording) == {Rule.NOTHING_UNEXPECTED}
    assert found(recording, Rule.NOTHING_UNEXPECTED).broken == 2
    figures = measure(recording)
    assert (figures.most_held, figures.most_running, figures.started_out_of_order) == (1, 1, 0.0)


def test_requests_that_were_sent_again_are_judged_against_all_others() -> None:
    def sent(sendings: list[int], ids: list[int]) -> set[Rule]:
        recording = hand_made(*(Life(id=n, since=0, granted=1, ended=2) for n in sorted(ids)), limit=None)
        recording.orders["sendings"], recording.orders["execution_id"] = sendings, ids
        numbers = [ids.index(n) for n in sorted(ids)]
        recording.executions["number"] = recording.runs["number"] = numbers
        return broken(recording)

    assert sent([1, 2, 2, 1], [1, 3, 2, 4]) == set()
    assert sent([1, 2, 1, 1], [1, 3, 2, 4]) == {Rule.ADMITTED_IN_ORDER}
    assert sent([1, 1, 2, 1], [1, 3, 2, 4]) == {Rule.ADMITTED_IN_ORDER}


def test_while_one_is_stuck_nobody_knows_who_waits_or_is_active() -> None:
    says = ActionCounters(
        enqueued_before=0, enqueued=1, completed_before=0, completed=0, queue_length=1, active_count=1
    )
    assert broken(hand_made(Life(id=1, since=0, granted=1), counters=(says,))) == {Rule.NOTHING_STUCK}
