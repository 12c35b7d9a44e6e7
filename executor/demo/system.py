"""The system of the demonstration: private servers, one executor and two workers, each a process of its own.

In: the machine's binaries and this checkout's code. Out: a running system with its URLs. Whatever happens to
us, kill -9 included, nothing of it stays: each process has a keeper beside it that ends it when we are gone.
What is shown here is restarted nowhere: a process that ends by itself ends the demonstration.
"""

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from common.domain.errors import TurnstileError
from executor.demo.job import ACTIONS_MODULE
from localservers import LocalServers, LocalServersError, ServerFailed
from localservers.ports import LOOPBACK, free_port
from localservers.processes import ServerProcess, wait_until_ready
from migrations import migrate

WORKERS: Final = 2
_NAME: Final = "turnstile"
_MIGRATE_SECONDS: Final = 60.0
_READY_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 15.0
_DRAIN_SECONDS: Final = 3
"""Nobody will use the results of work that is still running when the demonstration is broken off."""


class NoExamples(TurnstileError):
    """The actions of the demonstration are not part of an installation, only of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process of ours and the address at which it answers `/readyz`."""

    process: ServerProcess
    url: str

    def is_ready(self, http: httpx.Client) -> bool:
        """Tell whether it reaches all that it needs."""
        try:
            answer = http.get(f"{self.url}/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK


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

    def start_services(self) -> None:
        """Start the executor and the workers side by side; return when all of them are ready."""
        self.folder.mkdir()
        port = free_port()
        self._start("executor", ["executor.cli", "serve"], port, {"TURNSTILE_HTTP_PORT": str(port)})
        for number in range(1, WORKERS + 1):
            name, port = f"worker-{number}", free_port()
            given = {"TURNSTILE_WORKER_NAME": name, "TURNSTILE_WORKER_HTTP_PORT": str(port)}
            self._start(name, ["worker.cli", "serve", "--actions", ACTIONS_MODULE], port, given)
        with httpx.Client(timeout=_PROBE_SECONDS, trust_env=False) as http:
            for service in self.services:
                wait_until_ready(partial(service.is_ready, http), service.process, _READY_SECONDS)

    def stop_services(self) -> None:
        """Stop what was started; when this returns none of it is left."""
        with ThreadPoolExecutor(max_workers=1 + WORKERS, thread_name_prefix="stop") as pool:
            for service in self.services:
                pool.submit(service.process.stop, signal.SIGTERM, _STOP_SECONDS)

    def check(self) -> None:
        """Raise ServerFailed, with the end of its log, where a process of ours has ended by itself."""
        for service in self.services:
            if not service.process.is_running:
                raise ServerFailed(f"{service.process.name} ended by itself", service.process.log)

    def _start(self, name: str, arguments: list[str], port: int, given: Mapping[str, str]) -> None:
        process = ServerProcess.start(
            name,
            [sys.executable, "-m", *arguments],
            folder=self.folder,
            environment={**self._environment(), **given},
            user=None,
            last_signal=signal.SIGTERM,
            grace_seconds=_STOP_SECONDS,
        )
        self.services.append(Service(process=process, url=f"http://{LOOPBACK}:{port}"))

    def _environment(self) -> dict[str, str]:
        # The user's own settings are for another system.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
        paths = [str(self.source), *filter(None, [inherited.get("PYTHONPATH")])]
        return inherited | {
            "PYTHONPATH": os.pathsep.join(paths),
            "TURNSTILE_DATABASE_URL": self.database_url,
            "TURNSTILE_AMQP_URL": self.amqp_url,
            "TURNSTILE_DRAIN_TIMEOUT": f"{_DRAIN_SECONDS}s",
        }


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
async def running_servers(source: Path) -> AsyncIterator[System]:
    """Run both servers with a migrated database and an empty vhost; no service yet."""
    starting = asyncio.create_task(asyncio.to_thread(LocalServers.start), name="start-servers")
    try:
        servers = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Their start cannot be interrupted, and what it started must not stay.
        with suppress(LocalServersError):
            await asyncio.to_thread((await starting).stop)
        raise
    try:
        database_url = await asyncio.to_thread(servers.postgresql.create_database, _NAME)
        amqp_url = await asyncio.to_thread(servers.rabbitmq.create_vhost, _NAME)
        async with asyncio.timeout(_MIGRATE_SECONDS):
            await migrate(database_url)
        yield System(servers=servers, database_url=database_url, amqp_url=amqp_url, source=source)
    finally:
        await asyncio.to_thread(servers.stop)


@asynccontextmanager
async def running_services(system: System) -> AsyncIterator[None]:
    """Run the executor and the workers."""
    starting = asyncio.create_task(asyncio.to_thread(system.start_services), name="start-services")
    try:
        await asyncio.shield(starting)
        yield
    finally:
        # A start that failed while it was broken off has nobody else to tell.
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.to_thread(system.stop_services)
