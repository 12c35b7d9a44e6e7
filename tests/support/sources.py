"""The servers of a test session: given by URL, private ones, or containers.

In: the environment. Out: a database server and a broker for all tests, or the reason why none is available. A
test that lacks something is skipped, and fails in CI: a test that is always skipped proves nothing.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from turnstile.localservers import BrokerServer, DatabaseServer, MissingBinaries, servers_for_tests
from turnstile.localservers.binaries import install, may_install
from turnstile.localservers.servers import SERVER_URLS

DATABASE_URL, AMQP_URL, MANAGEMENT_URL = SERVER_URLS
_DOCKER_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of a session."""

    postgresql: DatabaseServer
    rabbitmq: BrokerServer


LentUrls = Callable[[], AbstractContextManager[tuple[str, str]]]
"""Lends the URLs of a migrated database and of a vhost."""


class NoServers(Exception):
    """No servers are available; the message says what would help."""


def skip(reason: object) -> NoReturn:
    """Skip this test because of what is missing; fail it where the variable CI is set."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))


def program_of(package: str, *names: str) -> str:
    """Return the path of the first of these programs, which are alike; Debian's package has the first one.

    Where that is missing and this process may, it is installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    reason = f"no {names[0]} on PATH; install Debian's package {package}"
    if shutil.which(names[0], path=path) is None and may_install():
        try:
            install({names[0]: package})
        except MissingBinaries as missing:
            reason = str(missing)
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None) or skip(reason)


def create_tables(url: str) -> None:
    """Bring an empty database to the newest schema, as `executor migrate` does."""
    # Imported here, so that tests of packages without a database do not load the migrations.
    from turnstile.migrations.run import migrate

    asyncio.run(migrate(url))


@contextmanager
def servers_of_the_session() -> Iterator[Servers]:
    """Provide servers from the first source there is; raise `NoServers` where there is none."""
    with ExitStack() as stack:
        try:
            postgresql, rabbitmq = stack.enter_context(servers_for_tests())
        except MissingBinaries as missing:
            yield stack.enter_context(_containers(missing))
        else:
            yield Servers(postgresql=postgresql, rabbitmq=rabbitmq)


@contextmanager
def _containers(missing: MissingBinaries) -> Iterator[Servers]:
    if "DOCKER_HOST" not in os.environ and not _DOCKER_SOCKET.exists():
        raise NoServers(f"{missing}\nOr start a Docker engine, or set {', '.join(SERVER_URLS)}.")
    from testcontainers.community.postgres import PostgresContainer
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    listens = HttpWaitStrategy(15672, "/api/health/checks/protocol-listener/amqp")
    listens.with_basic_credentials("guest", "guest").with_startup_timeout(90)
    broker = DockerContainer("rabbitmq:3.13-management").with_exposed_ports(5672, 15672).waiting_for(listens)
    with PostgresContainer("postgres:16", driver=None) as database, broker:
        host = broker.get_container_host_ip()
        with BrokerServer(
            f"amqp://guest:guest@{host}:{broker.get_exposed_port(5672)}/%2F",
            f"http://{host}:{broker.get_exposed_port(15672)}",
        ) as rabbitmq:
            yield Servers(postgresql=DatabaseServer(database.get_connection_url()), rabbitmq=rabbitmq)
