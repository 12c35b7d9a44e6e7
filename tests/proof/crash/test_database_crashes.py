"""P1 to P5: a killed database server costs nothing but time, also in the turn whose answer was not heard.

The trials share one system, as in `test_crash_points.py`, on a database server of their own.
"""

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.proof.crash.database_crashes import TRIALS, tried_crash
from tests.proof.crash.environment import Environment, running_environment
from turnstile.localservers import PostgresServer
from turnstile.migrations.run import migrate

pytestmark = pytest.mark.asyncio(loop_scope="module")
_SHORT: Final = frozenset({"database.turn_committed", "database.turn_lost.with_executor"})


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
    "name", [pytest.param(name, marks=[] if name in _SHORT else [pytest.mark.whole]) for name in TRIALS]
)
async def test_a_killed_database_server_loses_no_execution_and_starts_none_twice(
    system: tuple[Environment, PostgresServer], name: str
) -> None:
    faults = await tried_crash(*system, name, 1)
    assert not faults, "\n".join(faults)
