"""`env`: one system for all tests of a module, each of which ends with a clean audit.

A module that uses it runs in the module's event loop, and may set `OPTIONS`, those of `running_environment`.
Its tests use actions or concurrency keys of their own, and leave no execution unfinished.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.environment import Environment, StartEnvironment, running_environment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_environment(
    request: pytest.FixtureRequest, module_urls: tuple[str, str]
) -> AsyncIterator[Environment]:
    """Run the module's system, with a database and a vhost of its own."""
    async with running_environment(*module_urls, **getattr(request.module, "OPTIONS", {})) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def env(shared_environment: Environment) -> AsyncIterator[Environment]:
    """The module's system; after the test every execution has ended, and the audit is clean."""
    yield shared_environment
    assert await shared_environment.history.faults() == []


@pytest.fixture
def start_env(database_url: str, amqp_url: str) -> StartEnvironment:
    """Start a system for one test; takes the options of `running_environment`."""
    return partial(running_environment, database_url, amqp_url)


@pytest.fixture
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that the accounts of private servers can reach."""
    folder = Path(tempfile.mkdtemp(prefix="scratch-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)
