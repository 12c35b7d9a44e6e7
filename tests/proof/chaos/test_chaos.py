"""P1 to P7 under half a minute of load in which every kind of short fault happens."""

from typing import Final

import pytest

from tests.proof.chaos.report import shown
from tests.proof.chaos.run import run_seed
from tests.proof.chaos.schedule import Kind, Shape, plan_faults

SEED: Final = 135
# A regular restart of the broker takes most of that time; `make chaos` has it.
KINDS: Final = tuple(kind for kind in Kind if kind is not Kind.BROKER_RESTARTED)
SHORT: Final = Shape(seconds=25.0, quiet_seconds=(0.0, 0.4), together=0.85, stretch=0.25, kinds=KINDS)
PATIENCE: Final = 2.0


def test_the_short_run_has_every_kind_of_fault() -> None:
    assert {fault.kind for fault in plan_faults(SEED, SHORT)} == set(KINDS)


@pytest.mark.timeout(300)
async def test_no_promise_is_broken_by_any_fault() -> None:
    outcome = await run_seed(SEED, SHORT, patience=PATIENCE)
    print(shown(outcome))
    assert outcome.violations == []
    assert outcome.statistics.workers_lost > 0
