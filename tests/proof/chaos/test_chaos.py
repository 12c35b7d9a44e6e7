"""P1 to P7 under a quarter of a minute of load in which nearly every kind of fault happens."""

from typing import Final

import pytest

from tests.proof.chaos.report import shown
from tests.proof.chaos.run import run_seed
from tests.proof.chaos.schedule import Kind, Shape, plan_faults

SEED: Final = 1368
# These last long or heal slowly. `make chaos` has them; a lease that ends, an unreachable database and an
# alarm of the broker have tests of their own in `tests/e2e` too.
LEFT_OUT: Final = {
    Kind.BROKER_RESTARTED,
    Kind.DATABASE_UNREACHABLE,
    Kind.MEMORY_ALARM,
    Kind.WORKER_PAUSED_LONG,
    Kind.WORKER_STOPPED,
}
KINDS: Final = tuple(kind for kind in Kind if kind not in LEFT_OUT)
SHORT: Final = Shape(seconds=13.0, quiet_seconds=(0.0, 0.3), together=0.85, stretch=0.2, kinds=KINDS)
PATIENCE: Final = 2.0


def test_the_short_run_has_each_of_these_kinds_of_fault() -> None:
    assert {fault.kind for fault in plan_faults(SEED, SHORT)} == set(KINDS)


@pytest.mark.timeout(300)
async def test_no_promise_is_broken_by_any_fault() -> None:
    outcome = await run_seed(SEED, SHORT, patience=PATIENCE)
    print(shown(outcome))
    assert outcome.violations == []
    assert outcome.statistics.workers_lost > 0
    assert outcome.statistics.waited_for_workers > 0
