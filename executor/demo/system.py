"""The system of the demonstration: private servers, one executor and two workers, each a process of its own.

In: the machine's binaries and this checkout's code. Out: a running system with its URLs. Whatever happens to
us, kill -9 included, nothing of it stays: each process has a keeper beside it that ends it when we are gone.
What is shown here is restarted nowhere: a process that ends by itself ends the demonstration.
"""

import asyncio
import importlib.util
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turnstile.common.domain.errors import TurnstileError
from turnstile.executor.demo.job import ACTIONS_MODULE
from turnstile.localservers import LocalServers, running_servers
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without, serving
from turnstile.localservers.threads import to_the_end
from turnstile.migrations import migrate

WORKERS: Final = 2
_NAME: Final = "turnstile"
_MIGRATE_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_DRAIN_SECONDS: Final = 3
"""Nobody will use the results of work that is still running when the demonstration is broken off."""


class NoExamples(TurnstileError):
    """The actions of the demonstration are not part of an installation, only of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Everything that runs, and where."""

    servers: LocalServers
    database_url: str
    amqp_url: str
    source: Path
    """The folder that holds `examples`."""
    services: list[Service] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """A folder for logs and files, which goes when the servers go."""
        return self.servers.folder / "demo"

    @property
    def http_url(self) -> str:
        """The executor's HTTP API."""
        return self.services[0].url

    def check(self) -> None:
        """Raise ServerFailed, with the end of its log, where a process of ours has ended by itself."""
        for service in self.services:
            service.check_running()


def find_source() -> Path:
    """Return the folder that holds the actions of the demonstration; raises NoExamples."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(ACTIONS_MODULE)
        if found and found.origin:
            return Path(found.origin).resolve().parents[1]
    raise NoExamples(f"{ACTIONS_MODULE} is not here; run the demonstration in the folder of the source code")


@asynccontextmanager
async def running_system(source: Path) -> AsyncIterator[System]:
    """Run both servers with a migrated database and an empty vhost; no service yet."""
    async with running_servers() as servers:
        database_url = await to_the_end(servers.postgresql.create_database, _NAME)
        amqp_url = await to_the_end(servers.rabbitmq.create_vhost, _NAME)
        async with asyncio.timeout(_MIGRATE_SECONDS):
            await migrate(database_url)
        yield System(servers=servers, database_url=database_url, amqp_url=amqp_url, source=source)


@asynccontextmanager
async def running_services(system: System) -> AsyncIterator[None]:
    """Run the executor and the workers."""
    system.folder.mkdir()
    port = free_port()
    given = {"TURNSTILE_HTTP_PORT": str(port)}
    system.services.append(_service(system, "executor", ["turnstile.executor.cli", "serve"], port, given))
    for number in range(1, WORKERS + 1):
        name, port = f"worker-{number}", free_port()
        given = {"TURNSTILE_WORKER_NAME": name, "TURNSTILE_WORKER_HTTP_PORT": str(port)}
        arguments = ["turnstile.worker.cli", "serve", "--actions", ACTIONS_MODULE]
        system.services.append(_service(system, name, arguments, port, given))
    async with serving(system.services, last_signal=signal.SIGTERM):
        yield


def _service(
    system: System, name: str, arguments: Sequence[str], port: int, given: Mapping[str, str]
) -> Service:
    return Service(
        name=name,
        arguments=arguments,
        folder=system.folder,
        environment={
            # The user's own settings are for another system.
            **environment_without("TURNSTILE_", importable=system.source),
            "TURNSTILE_DATABASE_URL": system.database_url,
            "TURNSTILE_AMQP_URL": system.amqp_url,
            "TURNSTILE_DRAIN_TIMEOUT": f"{_DRAIN_SECONDS}s",
            **given,
        },
        port=port,
        last_signal=signal.SIGTERM,
        stop_seconds=_STOP_SECONDS,
    )
