"""P1, P2, P4, P5: what a killed database server had not written is repaired; nothing runs twice.

The trials share one system, as in `test_crash_points.py`, on a database server of their own.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.proof.crash.database_crashes import TRIALS, tried_crash
from tests.proof.crash.environment import Environment, running_environment
from turnstile.localservers import PostgresServer
from turnstile.migrations.run import migrate

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    own_postgresql: PostgresServer, module_urls: tuple[str, str]
) -> AsyncIterator[tuple[Environment, PostgresServer]]:
    database_url = own_postgresql.create_database("crash")
    await migrate(database_url)
    async with running_environment(database_url, module_urls[1]) as env:
        yield env, own_postgresql


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.whole] if index else []) for index, name in enumerate(TRIALS)],
)
async def test_a_killed_database_server_loses_no_execution_and_starts_none_twice(
    system: tuple[Environment, PostgresServer], name: str
) -> None:
    faults = await tried_crash(*system, name, 1)
    assert not faults, "\n".join(faults)
