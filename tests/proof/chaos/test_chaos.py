"""No promise is broken in eight seconds of load in which most kinds of fault happen."""

from typing import Final

import pytest

from tests.proof.chaos.report import shown
from tests.proof.chaos.run import run_seed
from tests.proof.chaos.schedule import Kind, Shape, plan_faults

SEED: Final = 1349
# These last long, heal slowly, or have tests of their own in `tests/e2e`. `make chaos` has them.
LEFT_OUT: Final = {
    Kind.BROKER_RESTARTED,
    Kind.DATABASE_RESTARTED,
    Kind.DATABASE_UNREACHABLE,
    Kind.EXECUTOR_KILLED,
    Kind.EXECUTOR_PAUSED,
    Kind.EXECUTOR_STOPPED,
    Kind.MEMORY_ALARM,
    Kind.WORKER_CUT_OFF,
    Kind.WORKER_KILLED,
    Kind.WORKER_PAUSED_LONG,
    Kind.WORKER_STOPPED,
}
KINDS: Final = tuple(kind for kind in Kind if kind not in LEFT_OUT)
SHORT: Final = Shape(seconds=8.0, quiet_seconds=(0.0, 0.3), together=0.85, stretch=0.2, kinds=KINDS)
PATIENCE: Final = 2.0


def test_the_short_run_has_each_of_these_kinds_of_fault() -> None:
    assert {fault.kind for fault in plan_faults(SEED, SHORT)} == set(KINDS)


@pytest.mark.timeout(300)
async def test_no_promise_is_broken_by_any_fault() -> None:
    outcome = await run_seed(SEED, SHORT, patience=PATIENCE)
    print(shown(outcome))
    assert outcome.violations == []
    assert outcome.statistics.workers_lost > 0
