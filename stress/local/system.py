"""A private installation for one run: started, broken, repaired, stopped.

The services have the product's default settings except for the lease, so that users get what is measured.
When the context ends, or this process dies in any way, nothing of the installation is left.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr

from turnstile.localservers import running_servers
from turnstile.localservers.services import Collapse
from turnstile.stress.installation import Api, Installation
from turnstile.stress.local.faults import Targets, inject_fault, watching_exits
from turnstile.stress.local.launcher import Deployment, create_database_and_vhost, running_system
from turnstile.stress.recording import InjectedFault
from turnstile.stress.scenario import PlannedFault
from turnstile.stress.trace import ACTIONS_VARIABLE, TRACE_VARIABLE

_NAME: Final = "stress"
_ACTIONS_MODULE: Final = "turnstile.stress.actions"
_HEARTBEATS_PER_LEASE: Final = 3


class LocalSystem:
    """A private installation, and its `FaultInjector`."""

    def __init__(self, installation: Installation, targets: Targets) -> None:
        self.installation = installation
        self._targets = targets

    async def inject(self, fault: PlannedFault) -> InjectedFault:
        """Inject a fault, wait for its duration, repair it; return when everything is ready again."""
        return await inject_fault(self._targets, fault)

    def exits(self) -> Mapping[int, int]:
        """Return when the exit of each process that ran actions was observed (nanoseconds)."""
        self._targets.watch.poll()
        return self._targets.watch.exits

    def versions(self) -> dict[str, str]:
        """Return the versions of the servers; blocking, so call it in a thread."""
        return self._targets.servers.versions()

    @property
    def collapses(self) -> tuple[Collapse, ...]:
        """The services that ended by themselves; each was started again."""
        services = self._targets.system.services
        return tuple(sorted((c for service in services for c in service.collapses), key=lambda c: c.at))


@asynccontextmanager
async def running_locally(
    *,
    executors: int,
    workers: int,
    concurrency: int,
    actions: int,
    lease_seconds: float,
    say: Callable[[str], object],
) -> AsyncIterator[LocalSystem]:
    """Run an installation; everything is ready on entry and gone on exit. Raises LocalServersError."""
    say("Starting PostgreSQL and RabbitMQ in a scratch folder")
    async with running_servers() as servers:
        database_url, amqp_url = await create_database_and_vhost(servers.postgresql, servers.rabbitmq, _NAME)
        trace_folder = servers.folder / "services" / "traces"
        trace_folder.mkdir(parents=True)
        deployment = Deployment(
            database_url=database_url,
            amqp_url=amqp_url,
            folder=servers.folder / "services" / "logs",
            settings={
                "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
                "TURNSTILE_HEARTBEAT_INTERVAL": f"{lease_seconds / _HEARTBEATS_PER_LEASE:.3f}s",
                "TURNSTILE_LOG_LEVEL": "WARNING",
            },
        )
        say(f"Starting {_counted(executors, 'executor')} and {_counted(workers, 'worker')}")
        settings = _worker_settings(actions, trace_folder, concurrency)
        executor_services = [deployment.executor(f"executor-{n}") for n in range(1, executors + 1)]
        worker_services = [
            deployment.worker(f"worker-{n}", actions=_ACTIONS_MODULE, settings=settings)
            for n in range(1, workers + 1)
        ]
        async with (
            running_system(deployment, executor_services, worker_services, restart_failed=True) as system,
            httpx.AsyncClient(trust_env=False) as http,
            watching_exits(trace_folder) as watch,
        ):
            installation = Installation(
                amqp_url=SecretStr(amqp_url),
                http_urls=tuple(executor.url for executor in system.executors),
                trace_folder=trace_folder,
                lease_seconds=lease_seconds,
            )
            async with Api(installation) as api:
                yield LocalSystem(
                    installation, Targets(servers=servers, system=system, api=api, http=http, watch=watch)
                )


def _worker_settings(actions: int, trace_folder: Path, concurrency: int) -> dict[str, str]:
    return {
        ACTIONS_VARIABLE: str(actions),
        TRACE_VARIABLE: str(trace_folder),
        "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
