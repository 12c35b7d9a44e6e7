"""The schedule is a pure function of the seed, and leaves nothing out."""

from itertools import pairwise

import pytest

from tests.proof.chaos.schedule import DELETED, PURGED, Fault, Kind, Shape, parts_of, plan_faults

LONG = Shape(seconds=600.0)


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert plan_faults(7, LONG) == plan_faults(7, LONG)
    assert plan_faults(7, LONG) != plan_faults(8, LONG)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_fault_comes_before_any_comes_twice(seed: int) -> None:
    kinds = [fault.kind for fault in plan_faults(seed, LONG)]
    assert len(kinds) > 2 * len(Kind)
    assert set(kinds[: len(Kind)]) == set(Kind)


@pytest.mark.parametrize("seed", range(5))
def test_no_part_bears_two_faults_at_once(seed: int) -> None:
    over_at: dict[str, float] = {}
    faults = plan_faults(seed, LONG)
    for fault in faults:
        for part in parts_of(fault.kind, fault.target):
            assert fault.at_seconds >= over_at.get(part, 0.0) - 0.01
            over_at[part] = fault.at_seconds + fault.lasting_seconds
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)


@pytest.mark.parametrize("seed", range(5))
def test_faults_come_alone_and_together(seed: int) -> None:
    faults = plan_faults(seed, LONG)
    together = [b for a, b in pairwise(faults) if b.at_seconds < _over_at(a)]
    assert 0 < len(together) < len(faults) / 2


def test_requests_that_nobody_has_admitted_are_not_thrown_away() -> None:
    assert "executor.requests" not in PURGED
    assert "executor.requests" not in DELETED


def _over_at(fault: Fault) -> float:
    return fault.at_seconds + fault.lasting_seconds
