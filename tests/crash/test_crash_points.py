"""P5 at its sharpest: whoever dies between any two steps, nothing is lost, doubled, leaked or passed by.

Each test is one process that kills itself at one point; the whole history so far must be as it should. All
share one system, so each begins with what the last one left. `make crash` tries each point also the second
and the seventh time.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from localservers import BrokerServer, DatabaseServer
from tests.crash.ground import Ground, standing_ground
from tests.crash.trial import Case, cases, tried

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


@pytest.mark.parametrize("case", list(cases(1)), ids=lambda case: case.name)
async def test_a_process_that_dies_between_two_steps_breaks_no_promise(ground: Ground, case: Case) -> None:
    assert await tried(ground, case) == []
