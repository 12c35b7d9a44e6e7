"""P5 at its sharpest: whoever dies between any two steps, nothing is lost, doubled, leaked or passed by.

Each test lets processes kill themselves, one at each point; afterwards the whole history so far must be as it
should. All share one system, so each begins with what the last one left. `make crash` tries each point alone,
the first, the second and the seventh time.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.proof.crash.cases import groups
from tests.proof.crash.ground import Ground, standing_ground
from tests.proof.crash.trial import tried
from turnstile.common.crash_points import CrashPoint
from turnstile.localservers import BrokerServer, DatabaseServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(
    postgresql: DatabaseServer, rabbitmq: BrokerServer, template_database: str
) -> AsyncIterator[Ground]:
    name = f"{template_database}_crash"
    database_url = postgresql.create_database(name, template_database)
    amqp_url = rabbitmq.create_vhost(name)
    try:
        async with standing_ground(database_url, amqp_url) as ground:
            yield ground
    finally:
        postgresql.drop_database(name)
        rabbitmq.delete_vhost(name)


# The machine may be busy, and this starts processes one after the other.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("group", groups(1))
async def test_processes_that_die_between_two_steps_break_no_promise(ground: Ground, group: str) -> None:
    faults = await tried(ground, groups(1)[group])
    assert not faults, "\n".join(faults)


async def test_every_point_is_tried() -> None:
    tried_points = {case.point for group in groups(1).values() for case in group}
    assert tried_points == set(CrashPoint)
