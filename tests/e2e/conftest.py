"""`stage`: one system for all tests of a module, each of which ends with a clean audit.

A module that uses it sets `STAGE`, the options of `staged`, and runs in the module's event loop. Its tests
keep apart by actions or concurrency keys of their own, and leave nothing alive.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.stage import Stage, staged
from turnstile.localservers import BrokerServer, DatabaseServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_stage(
    request: pytest.FixtureRequest,
    postgresql: DatabaseServer,
    rabbitmq: BrokerServer,
    template_database: str,
) -> AsyncIterator[Stage]:
    name = f"{template_database}_{request.module.__name__.rpartition('.')[2]}"
    database_url = postgresql.create_database(name, template_database)
    amqp_url = rabbitmq.create_vhost(name)
    try:
        async with staged(database_url, amqp_url, **request.module.STAGE) as stage:
            yield stage
    finally:
        postgresql.drop_database(name)
        rabbitmq.delete_vhost(name)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(shared_stage: Stage) -> AsyncIterator[Stage]:
    """The module's system; after the test the record must be in order."""
    yield shared_stage
    assert await shared_stage.history.faults() == []
