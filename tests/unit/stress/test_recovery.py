"""How long a fault was felt, in histories in which that is known."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.stress.hand_made import Life, at, hand_made
from tests.unit.stress.histories import MILLISECOND, Plan, lawful
from tests.unit.stress.simulated_queue import LEASE, WORKERS
from turnstile.stress.figures.recovery import recoveries
from turnstile.stress.figures.values import Recovery
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import SECOND, Outcome, RunEnd


def broken_at(milliseconds: float, kind: FaultKind = FaultKind.RESTART_BROKER) -> InjectedFault:
    return InjectedFault(
        kind=kind,
        target="it",
        began_at=at(milliseconds),
        healed_at=at(milliseconds + 500),
        lost_worker=WORKERS[1] if kind is FaultKind.KILL_WORKER else None,
    )


def steady(starts: Iterable[float], *faults: InjectedFault, arrived: float | None = None) -> Recording:
    """One at a time: each arrives when it starts, or all at once, and takes 10 ms."""
    lives = [
        Life(id=n, since=start if arrived is None else arrived, granted=start, ended=start + 10)
        for n, start in enumerate(starts, 1)
    ]
    return hand_made(*lives, limit=None, faults=faults)


def at_rate(rate: float, recording: Recording) -> Recording:
    """Let the load have asked for so many each second."""
    load = replace(recording.stage.load, rate=rate)
    return replace(recording, stage=replace(recording.stage, load=load))


def only(recording: Recording) -> Recovery:
    (recovery,) = recoveries(recording)
    return recovery


def test_a_stall_ends_when_as_many_end_as_before() -> None:
    starts = [*range(0, 6_000, 20), *range(9_000, 16_000, 20)]
    recovery = only(steady(starts, broken_at(6_000), arrived=0))
    assert recovery.at_seconds == 6.0
    assert recovery.healed_seconds == 0.5
    assert recovery.recovered_seconds == pytest.approx(3.01)
    assert recovery.stall_seconds == pytest.approx(3.0, abs=0.02)
    assert (recovery.lost_runs, recovery.reclaim_seconds) == (0, None)


def test_a_fault_that_nobody_feels_is_over_at_once() -> None:
    recovery = only(steady(range(0, 16_000, 20), broken_at(6_000), arrived=0))
    assert recovery.recovered_seconds == pytest.approx(0.01, abs=0.02)
    assert recovery.stall_seconds <= 0.02


def test_half_the_pace_is_no_recovery() -> None:
    starts = [*range(0, 6_000, 20), *range(6_000, 10_000, 40), *range(10_000, 16_000, 20)]
    recovery = only(steady(starts, broken_at(6_000), arrived=0))
    assert recovery.recovered_seconds == pytest.approx(4.0, abs=0.5)


def test_a_pace_that_does_not_last_is_no_recovery() -> None:
    starts = [*range(0, 6_000, 20), *range(7_000, 8_500, 20), *range(12_000, 18_000, 20)]
    assert only(steady(starts, broken_at(6_000), arrived=0)).recovered_seconds == pytest.approx(6.01)


def test_with_less_to_do_than_before_doing_all_of_it_is_recovery() -> None:
    starts = [*range(0, 6_000, 20), *range(7_000, 7_200, 20)]
    assert only(steady(starts, broken_at(6_000), arrived=0)).recovered_seconds == pytest.approx(1.01)


def test_what_cannot_be_sent_meanwhile_is_missing_all_the_same() -> None:
    starts = [*range(0, 6_000, 20), *range(9_000, 16_000, 20)]
    paced = at_rate(50.0, steady(starts, broken_at(6_000)))
    assert only(paced).recovered_seconds == pytest.approx(3.01)
    assert only(paced).stall_seconds == pytest.approx(3.0, abs=0.03)


def test_a_fault_that_takes_effect_late_is_not_over_before() -> None:
    starts = [*range(0, 11_000, 20), *range(14_000, 22_000, 20)]
    late = broken_at(6_000)
    recovered = {
        healed: only(steady(starts, replace(late, healed_at=at(healed)), arrived=0)).recovered_seconds
        for healed in (7_000, 13_000)
    }
    next_one = replace(late, began_at=at(10_900), healed_at=at(13_000))
    first, second = recoveries(
        steady(starts, replace(late, healed_at=at(13_000)), next_one, arrived=0),
    )
    assert first.recovered_seconds == recovered[7_000]
    assert second.recovered_seconds == pytest.approx(3.11)
    assert recovered[7_000] == pytest.approx(0.01, abs=0.02)
    assert recovered[13_000] == pytest.approx(8.01)


def test_where_the_load_was_over_before_or_had_not_begun_nothing_is_known() -> None:
    for at_ms in (0, 7_000):
        recovery = only(steady(range(100, 6_000, 20), broken_at(at_ms)))
        assert recovery.recovered_seconds is None
    assert only(hand_made(faults=(broken_at(5),))).recovered_seconds is None


def test_time_in_which_nobody_waits_is_no_stall() -> None:
    seldom = at_rate(1.0, steady(range(0, 16_000, 1_000), broken_at(6_000)))
    assert only(seldom).stall_seconds == 0.0


def test_a_lost_worker_is_recovered_from_when_all_that_it_ran_has_a_slot_again() -> None:
    killed = lawful(Plan(executions=8_000, spacing_ns=2 * MILLISECOND, limit=6, killed_at=6 * SECOND))
    recovery = only(killed)
    lost = killed.attempts[killed.attempts["outcome"] == Outcome.RECLAIMED]
    assert recovery.lost_runs == len(lost) > 0
    assert recovery.reclaim_seconds == LEASE / SECOND
    assert recovery.recovered_seconds is not None
    assert recovery.recovered_seconds >= LEASE / SECOND
    assert recovery.kind is FaultKind.KILL_WORKER


def test_runs_that_were_killed_while_it_lasted_are_lost_whoever_ran_them() -> None:
    def killed(execution_id: int, at_ms: float) -> tuple[Life, Life]:
        first = Life(id=execution_id, since=0, granted=1, stop=at_ms, ended=8_000 + execution_id)
        lost = replace(first, outcome=Outcome.RECLAIMED, run_end=RunEnd.KILLED)
        return lost, Life(id=execution_id, since=8_005, granted=8_005, ended=8_010, attempt=2)

    recording = hand_made(*killed(1, 2), *killed(2, 6_010), *killed(3, 6_600), limit=3)
    recovery = only(replace(recording, faults=(broken_at(6_000),)))
    assert recovery.lost_runs == 1
    assert recovery.reclaim_seconds == pytest.approx(2.005)


def test_one_that_waits_all_along_makes_a_stall_whoever_comes_and_goes_meanwhile() -> None:
    starts = [*range(0, 6_000, 1_000), *range(9_000, 16_000, 1_000)]
    lives = [Life(id=n, since=start, granted=start, ended=start + 10) for n, start in enumerate(starts, 1)]
    lives += [Life(id=9_998, since=5_000, granted=9_000, ended=9_010)]
    lives += [Life(id=9_999, since=5_990, granted=5_995, ended=6_005)]
    recording = at_rate(0.01, hand_made(*lives, limit=None, faults=(broken_at(6_000),)))
    assert only(recording).stall_seconds == pytest.approx(3.0)


def test_one_that_was_taken_back_and_waits_again_makes_a_stall() -> None:
    taken_back = Life(id=1, since=0, granted=1, ended=6_500, outcome=Outcome.RECLAIMED)
    again = Life(id=1, since=6_500, granted=9_500, ended=9_510, attempt=2)
    recording = at_rate(0.01, hand_made(taken_back, again, faults=(broken_at(6_000),)))
    assert only(recording).stall_seconds == pytest.approx(3.0)


def test_what_was_lost_and_not_run_again_is_no_recovery() -> None:
    killed = lawful(Plan(executions=8_000, spacing_ns=2 * MILLISECOND, limit=6, killed_at=6 * SECOND))
    first_try = replace(killed, attempts=killed.attempts[killed.attempts["attempt"] == 1])
    assert only(first_try).recovered_seconds is None


def test_what_never_had_its_slot_again_was_not_reclaimed() -> None:
    lost = Life(id=1, since=0, granted=1, ended=8_000, outcome=Outcome.RECLAIMED, worker=1)
    recording = hand_made(lost, limit=2, faults=(broken_at(6_000, FaultKind.KILL_WORKER),))
    assert (only(recording).lost_runs, only(recording).reclaim_seconds) == (1, None)
    other = replace(recording, faults=(replace(recording.faults[0], lost_worker="somebody else"),))
    assert only(other).lost_runs == 0
