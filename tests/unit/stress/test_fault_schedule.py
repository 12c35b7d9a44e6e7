"""What is broken when: a function of the seed, with time to recover after each fault."""

from itertools import pairwise

import pytest

from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.stress.local.purging import queues_to_purge
from turnstile.stress.local.schedule import RECOVERABLE, plan_faults, recovery_plan, seconds_for
from turnstile.stress.stage import FaultKind, PlannedFault

LEASE_SECONDS = 6.0
SEEDS = range(1, 40)


def plan(
    seed: int, *, seconds: float = 3600.0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)
) -> tuple[PlannedFault, ...]:
    return plan_faults(
        seed, seconds=seconds, executors=2, workers=3, kinds=kinds, lease_seconds=LEASE_SECONDS, actions=5
    )


def test_the_same_seed_is_the_same_schedule_and_another_is_another() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_comes_before_any_comes_twice(seed: int) -> None:
    kinds = [fault.kind for fault in plan(seed)]
    size = len(FaultKind)
    assert len(kinds) > 2 * size
    for start in range(0, len(kinds) - size + 1, size):
        assert set(kinds[start : start + size]) == set(FaultKind)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_is_over_and_recovered_from_before_the_next_begins(seed: int) -> None:
    for before, after in pairwise(plan(seed)):
        least = LEASE_SECONDS if before.kind in (FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER) else 3.0
        assert after.at_seconds >= before.at_seconds + before.lasting_seconds + least


@pytest.mark.parametrize("seconds", [1.0, 60.0, 600.0])
def test_all_are_over_in_time(seconds: float) -> None:
    for seed in SEEDS:
        for fault in plan(seed, seconds=seconds):
            assert fault.at_seconds + fault.lasting_seconds < seconds


@pytest.mark.parametrize("seed", SEEDS)
def test_in_the_time_that_they_need_each_kind_comes(seed: int) -> None:
    for kinds in (tuple(FaultKind), (FaultKind.PURGE_QUEUES,), (FaultKind.KILL_WORKER,)):
        seconds = seconds_for(kinds, lease_seconds=LEASE_SECONDS)
        assert {fault.kind for fault in plan(seed, seconds=seconds, kinds=kinds)} == set(kinds)


def test_only_the_kinds_that_were_asked_for_come_and_none_is_a_kind_of_none() -> None:
    asked = (FaultKind.KILL_WORKER, FaultKind.PURGE_QUEUES)
    assert {fault.kind for fault in plan(7, kinds=asked)} == set(asked)
    assert plan(7, kinds=()) == ()


def test_each_part_is_hit_sooner_or_later_and_nothing_else() -> None:
    targets: dict[FaultKind, set[int]] = {kind: set() for kind in FaultKind}
    for fault in plan(7, seconds=36_000.0):
        targets[fault.kind].add(fault.target)
        assert (fault.limit is not None) == (fault.kind is FaultKind.CHANGE_LIMIT)
    assert targets[FaultKind.KILL_WORKER] == targets[FaultKind.PAUSE_WORKER] == {0, 1, 2}
    assert targets[FaultKind.KILL_EXECUTOR] == targets[FaultKind.PAUSE_EXECUTOR] == {0, 1}
    assert targets[FaultKind.CHANGE_LIMIT] == {0, 1, 2, 3, 4}
    assert targets[FaultKind.RESTART_BROKER] == {0}


def test_recoveries_are_shown_one_of_each_kind_two_leases_after_a_worker_was_lost() -> None:
    faults = recovery_plan(LEASE_SECONDS)
    assert [fault.kind for fault in faults] == list(RECOVERABLE)
    for before, after in pairwise(faults):
        apart = after.at_seconds - before.at_seconds
        if before.kind in (FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER):
            assert apart >= 2 * LEASE_SECONDS
        assert apart > before.lasting_seconds


def test_a_worker_whose_recovery_is_shown_is_paused_past_its_lease() -> None:
    (fault,) = recovery_plan(LEASE_SECONDS, kinds=(FaultKind.PAUSE_WORKER,))
    assert fault.lasting_seconds > LEASE_SECONDS


def test_requests_are_never_purged() -> None:
    assert EXECUTOR_REQUESTS not in queues_to_purge(["0a1b"])
