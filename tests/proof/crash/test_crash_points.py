"""P5: a process that dies between any two steps loses, doubles, leaks and overtakes nothing.

Each test lets processes kill themselves, one at each point; afterwards the whole history so far must be
correct. All share one system, so each begins with what the last one left. `make crash` tries each point
alone, the first, the second and the seventh time.
"""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.proof.crash.environment import Environment, running_environment
from tests.proof.crash.trial import Case, groups, tried
from tests.support.sizes import sizes
from turnstile.common.crash_points import CrashPoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERY: Final = groups(1)
_FEW: Final = frozenset(
    {
        CrashPoint.TURN_DECIDED,
        CrashPoint.TURN_WRITTEN,
        CrashPoint.TURN_PUBLISHED,
        CrashPoint.COMMANDS_STORED,
        CrashPoint.WEBHOOKS_CLAIMED,
        CrashPoint.OFFERS_RECEIVED,
        CrashPoint.ATTEMPT_ENDED,
        CrashPoint.REPORTS_CONFIRMED,
    }
)
SHORT: Final = {group: [case for case in cases if case.point in _FEW] for group, cases in EVERY.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(module_urls: tuple[str, str]) -> AsyncIterator[Environment]:
    async with running_environment(*module_urls) as env:
        yield env


# The machine may be busy, and this starts processes one after the other.
@pytest.mark.timeout(400)
@sizes("cases", short=SHORT, whole=EVERY)
@pytest.mark.parametrize("group", EVERY)
async def test_processes_that_die_between_two_steps_break_no_promise(
    env: Environment, group: str, cases: dict[str, list[Case]]
) -> None:
    faults = await tried(env, cases[group])
    assert not faults, "\n".join(faults)


async def test_every_point_is_tried() -> None:
    tried_points = {case.point for cases in EVERY.values() for case in cases}
    assert tried_points == set(CrashPoint)
