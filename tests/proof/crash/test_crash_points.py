"""P5: a process that dies between any two steps loses, doubles, leaks and overtakes nothing.

Each test lets processes kill themselves, one at each point; afterwards the whole history so far must be
correct. All share one system, so each begins with what the last one left. `make crash` tries each point
alone, the first, the second and the seventh time.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import pytest
import pytest_asyncio

from tests.proof.crash.environment import Environment, running_environment
from tests.proof.crash.trial import groups, tried
from tests.support.sizes import sizes
from turnstile.common.crash_points import CrashPoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERY: Final = dict.fromkeys(groups(1), 1)
SHORT: Final = EVERY | {"requests and completions": 2, "attempts": 2, "sweeps": 3, "takeovers": 3}
"""Of each group, every so many of its points."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(module_urls: tuple[str, str]) -> AsyncIterator[Environment]:
    async with running_environment(*module_urls) as env:
        yield env


# The machine may be busy, and this starts processes one after the other.
@pytest.mark.timeout(400)
@sizes("steps", short=SHORT, whole=EVERY)
@pytest.mark.parametrize("group", groups(1))
async def test_processes_that_die_between_two_steps_break_no_promise(
    env: Environment, group: str, steps: Mapping[str, int]
) -> None:
    faults = await tried(env, groups(1)[group][:: steps[group]])
    assert not faults, "\n".join(faults)


async def test_every_point_is_tried() -> None:
    tried_points = {case.point for group in groups(1).values() for case in group}
    assert tried_points == set(CrashPoint)
