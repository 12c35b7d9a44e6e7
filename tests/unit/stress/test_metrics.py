"""The metrics of histories that are small enough to know them, and recoveries from faults."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.stress.histories import (
    MILLISECOND,
    WORKERS,
    Life,
    at,
    hand_made,
)
from turnstile.stress.metrics import Recovery, Spread, measure_scenario, recoveries, spread
from turnstile.stress.recording import InjectedFault, Outcome, Recording, RunEnd
from turnstile.stress.scenario import FaultKind


def in_milliseconds(found: Spread | None) -> tuple[int, float, float]:
    assert found is not None
    return found.count, found.p50_ms, found.max_ms


def test_percentiles_are_nearest_ranks() -> None:
    found = spread(np.arange(100, 0, -1) * MILLISECOND)
    assert found == Spread(count=100, p50_ms=50.0, p90_ms=90.0, p99_ms=99.0, max_ms=100.0)
    assert spread(np.array([7 * MILLISECOND])) == Spread(count=1, p50_ms=7, p90_ms=7, p99_ms=7, max_ms=7)
    assert spread(np.empty(0, np.int64)) is None


def test_a_hand_over_is_from_a_stop_to_the_next_start_of_a_waiting_execution() -> None:
    metrics = measure_scenario(
        hand_made(
            Life(id=1, since=0, granted=1, start=2, stop=10, ended=11),
            Life(id=2, since=5, granted=13, start=14, stop=20, ended=22),
            Life(id=3, since=6, granted=25, start=31, stop=40, ended=42),
            Life(id=4, since=50, granted=51, start=52, stop=60, ended=61),
        )
    )
    assert in_milliseconds(metrics.hand_over) == (2, 4.0, 11.0)


@pytest.mark.parametrize("run_end", [RunEnd.KILLED, RunEnd.STOPPED])
def test_a_lost_run_has_no_hand_over(run_end: RunEnd) -> None:
    lost = hand_made(
        Life(id=1, since=0, granted=1, stop=5, ended=3_000, outcome=Outcome.RECLAIMED, run_end=run_end),
        Life(id=2, since=0, granted=3_014, ended=3_020),
        Life(id=3, since=0, granted=3_024, ended=3_030),
    )
    assert in_milliseconds(measure_scenario(lost).hand_over) == (1, 4.0, 4.0)


def test_the_pace_counts_from_the_first_request_or_from_resuming_to_the_last_end() -> None:
    lives = [Life(id=n, since=1_000, granted=2_000 + n, ended=3_000 * n) for n in (1, 2)]
    recording = hand_made(*lives, limit=None)
    metrics = measure_scenario(recording)
    assert (metrics.ended, metrics.seconds, metrics.executions_per_second) == (2, 5.0, 0.4)
    opened = measure_scenario(replace(recording, opened_at=at(2_000)))
    assert (opened.seconds, opened.executions_per_second) == (4.0, 0.5)


def test_slots_are_counted_by_the_history_and_by_the_runs() -> None:
    metrics = measure_scenario(
        hand_made(
            Life(id=1, since=0, granted=1, stop=5, ended=20),
            Life(id=2, since=0, granted=2, start=6, ended=20),
            Life(id=3, since=0, granted=2, start=8, ended=20),
            Life(id=4, since=0, granted=2, ended=20, queue=1),
            limit=None,
            actions=2,
        )
    )
    assert (metrics.peak_slots, metrics.peak_runs) == (3, 2)


def test_an_empty_scenario_has_no_metrics() -> None:
    metrics = measure_scenario(hand_made())
    assert (metrics.ended, metrics.executions_per_second, metrics.peak_slots) == (0, 0.0, 0)
    assert metrics.hand_over is None


def broken_at(milliseconds: float, kind: FaultKind = FaultKind.RESTART_BROKER) -> InjectedFault:
    return InjectedFault(
        kind=kind,
        target="it",
        began_at=at(milliseconds),
        healed_at=at(milliseconds + 500),
        lost_worker=WORKERS[1] if kind is FaultKind.KILL_WORKER else None,
    )


def steady(starts: Iterable[float], *faults: InjectedFault) -> Recording:
    """Return executions of 10 ms, one at a time; each arrives when it starts."""
    lives = [Life(id=n, since=start, granted=start, ended=start + 10) for n, start in enumerate(starts, 1)]
    return hand_made(*lives, limit=None, faults=faults)


def only(recording: Recording) -> Recovery:
    (recovery,) = recoveries(recording)
    return recovery


def test_a_stall_is_the_longest_time_between_two_starts_until_the_next_fault() -> None:
    starts = [*range(0, 6_000, 20), *range(9_000, 12_000, 20), *range(16_000, 17_000, 20)]
    first, second = recoveries(steady(starts, broken_at(6_000), broken_at(12_000)))
    assert (first.at_seconds, first.healed_seconds) == (6.0, 0.5)
    assert (first.lost_runs, first.reclaim_seconds) == (0, None)
    assert (first.stall_seconds, second.stall_seconds) == (3.02, 4.02)
    assert only(steady(range(0, 9_000, 20), broken_at(6_000))).stall_seconds == 0.02
    assert only(steady([], broken_at(6_000))).stall_seconds == 0.0


def test_lost_runs_are_reclaimed_when_all_have_slots_again() -> None:
    lost = Life(id=1, since=0, granted=1, ended=4_000, worker=1, outcome=Outcome.RECLAIMED)
    again = Life(id=1, since=4_000, granted=4_000, ended=4_100, attempt=2)
    other = [replace(lost, id=2), replace(again, id=2, granted=4_500, ended=4_600)]
    recovery = only(
        hand_made(lost, again, *other, limit=2, faults=(broken_at(1_000, FaultKind.KILL_WORKER),))
    )
    assert (recovery.lost_runs, recovery.reclaim_seconds) == (2, 3.5)
    assert recovery.kind is FaultKind.KILL_WORKER


def test_runs_that_were_killed_during_a_fault_are_lost() -> None:
    def killed(execution_id: int, at_ms: float) -> tuple[Life, Life]:
        first = Life(id=execution_id, since=0, granted=1, stop=at_ms, ended=8_000 + execution_id)
        lost = replace(first, outcome=Outcome.RECLAIMED, run_end=RunEnd.KILLED)
        return lost, Life(id=execution_id, since=8_005, granted=8_005, ended=8_010, attempt=2)

    recording = hand_made(*killed(1, 2), *killed(2, 6_010), *killed(3, 6_600), limit=3)
    recovery = only(replace(recording, faults=(broken_at(6_000),)))
    assert recovery.lost_runs == 1
    assert recovery.reclaim_seconds == pytest.approx(2.005)
