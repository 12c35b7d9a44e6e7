"""Fixtures of all tests: servers per session, a database and a vhost per test.

Most tests use `database_url` and `amqp_url`; a test that stops, pauses or kills a server uses `own_servers`
or the cheaper `own_postgresql`, and one that causes an alarm of the broker `controlled_broker`.
Without servers, tests that need one are skipped, and fail with CI=true.
"""

import gc
import logging
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.processes import failed_tests
from tests.support.sources import LentUrls, NoServers, Servers, create_tables, servers_of_the_session, skip
from turnstile.common.telemetry import logs, tracing
from turnstile.localservers import (
    BrokerServer,
    DatabaseServer,
    LocalServers,
    MissingBinaries,
    PostgresServer,
    RabbitServer,
)
from turnstile.localservers.binaries import install_missing
from turnstile.localservers.servers import ScratchFolder

# Facts and not milliseconds: other tests use the processors.
hypothesis.settings.register_profile(
    "facts", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("facts")

# Unique, since several sessions may use the servers at once.
_SESSION = secrets.token_hex(4)

_ONE_INSTALLATION = tuple(
    f"tests/integration/{folder}/" for folder in ("security", "cli", "dashboard", "telemetry")
)
"""Folders whose tests share a running system: in each further test process it would be started once more."""
_LONG = (*_ONE_INSTALLATION, "tests/e2e/", "tests/proof/", "tests/integration/")
"""Folders of tests that start processes and wait for them; the first ones are the longest parts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the long tests, so that all test processes end at nearly the same time."""
    folders = [Path(__file__).parents[1] / name for name in _LONG]

    def position(item: pytest.Item) -> int:
        return next((n for n, folder in enumerate(folders) if item.path.is_relative_to(folder)), len(folders))

    items.sort(key=position)


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the modules and tests, which live to the end."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one test process, and each folder with an installation of its own, too."""
    if config.getoption("dist") != "loadfile":
        return None
    # Without types, and only there in runs with several processes.
    scheduler: Any = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduler._split_scope = _installation_of
    return scheduler


def _installation_of(nodeid: str) -> str:
    """Return what runs in one test process with this test: its file, or such a folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in _ONE_INSTALLATION if file.startswith(folder)), file)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record failures: the services of a failed test keep their logs."""
    if report.failed:
        failed_tests.append(report.nodeid)


@pytest.fixture(autouse=True)
def own_telemetry() -> Iterator[None]:
    """Restore logging and tracing: a command that runs in this process sets them for all of it."""
    root, spans = logging.getLogger(), tracing.active()
    level, handlers = root.level, list(root.handlers)
    yield
    tracing.switch_on(spans)
    root.handlers[:] = handlers
    # Not the attribute: the loggers keep what they answered for the level.
    root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def no_quiet_ends() -> Iterator[None]:
    """Log nothing in one test about failures that ended in another, a minute before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logs, "_QUIET_SECONDS", math.inf)
        yield


def _unique(kind: str) -> str:
    return f"turnstile_test_{_SESSION}_{kind}_{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL and RabbitMQ for the whole session; tests must leave them running."""
    with ExitStack() as stack:
        try:
            provided = stack.enter_context(servers_of_the_session())
        except NoServers as none:
            skip(none)
        yield provided


@pytest.fixture(scope="session")
def local_binaries() -> None:
    """The programs of private servers, for tests that start their own in any case."""
    try:
        install_missing()
    except MissingBinaries as missing:
        skip(missing)


@pytest.fixture(scope="session")
def postgresql(servers: Servers) -> DatabaseServer:
    """The session's PostgreSQL."""
    return servers.postgresql


@pytest.fixture(scope="session")
def rabbitmq(servers: Servers) -> BrokerServer:
    """The session's RabbitMQ."""
    return servers.rabbitmq


@pytest.fixture(scope="session")
def template_database(postgresql: DatabaseServer) -> Iterator[str]:
    """The name of a migrated database without rows, to be copied and never connected to."""
    name = _unique("template")
    create_tables(postgresql.create_database(name))
    yield name
    postgresql.drop_database(name)


@pytest.fixture
def database_url(postgresql: DatabaseServer, template_database: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    name = _unique("database")
    yield postgresql.create_database(name, template_database)
    postgresql.drop_database(name)


@pytest.fixture(scope="session")
def lent_urls(postgresql: DatabaseServer, rabbitmq: BrokerServer, template_database: str) -> LentUrls:
    """Lend a migrated database and a vhost to the tests of a module, a folder or the session."""

    @contextmanager
    def lent() -> Iterator[tuple[str, str]]:
        name = _unique("shared")
        try:
            yield postgresql.create_database(name, template_database), rabbitmq.create_vhost(name)
        finally:
            postgresql.drop_database(name)
            rabbitmq.delete_vhost(name)

    return lent


@pytest.fixture(scope="module")
def module_urls(lent_urls: LentUrls) -> Iterator[tuple[str, str]]:
    """A migrated database and a vhost for all tests of a module."""
    with lent_urls() as urls:
        yield urls


@pytest.fixture
def empty_database_url(postgresql: DatabaseServer) -> Iterator[str]:
    """A database of the test's own without any table."""
    name = _unique("empty")
    yield postgresql.create_database(name)
    postgresql.drop_database(name)


@pytest.fixture
def amqp_url(rabbitmq: BrokerServer) -> Iterator[str]:
    """A vhost of the test's own."""
    name = _unique("vhost")
    yield rabbitmq.create_vhost(name)
    rabbitmq.delete_vhost(name)


@pytest.fixture
def own_servers() -> Iterator[Callable[..., LocalServers]]:
    """Start private servers that the test may stop, pause and kill; takes what `LocalServers.start` takes."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(LocalServers.start(**({"durable": False} | options)))


@pytest.fixture(scope="module")
def own_postgresql(local_binaries: None) -> Iterator[PostgresServer]:
    """A PostgreSQL of the module's own, which it may configure, stop and kill."""
    scratch = ScratchFolder.create(in_memory=True)
    try:
        server = PostgresServer.start(scratch.path / "postgresql", durable=False)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        scratch.delete()


@pytest.fixture(scope="module")
def controlled_broker(rabbitmq: BrokerServer) -> Iterator[RabbitServer]:
    """A RabbitMQ that `ctl` can change, and the test restores: the session's if it is private."""
    if isinstance(rabbitmq, RabbitServer):
        yield rabbitmq
        return
    with LocalServers.start(durable=False) as own:
        yield own.rabbitmq


@pytest.fixture(scope="module")
def controlled_amqp_url(controlled_broker: RabbitServer) -> Iterator[str]:
    """A vhost on the `controlled_broker`."""
    name = _unique("controlled")
    yield controlled_broker.create_vhost(name)
    controlled_broker.delete_vhost(name)
