"""A private installation for one run: brought up, lent, broken, taken down.

In: how many executors and workers. Out: a `LocalSystem`: an installation to talk to, and its breaker. When it
is given back, or we die of whatever, nothing of it is left. Next: `faults`.
"""

import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr

from turnstile.localservers import LocalServers, running_servers
from turnstile.localservers.processes import run_once
from turnstile.localservers.services import Collapse, serving
from turnstile.localservers.threads import to_the_end
from turnstile.stress.api import Api
from turnstile.stress.installation import Installation
from turnstile.stress.local.deaths import watching
from turnstile.stress.local.faults import Parts, break_and_heal
from turnstile.stress.local.services import Place, Services, executors_of, workers_of
from turnstile.stress.recording import InjectedFault
from turnstile.stress.stage import PlannedFault

_NAME: Final = "stress"

Say = Callable[[str], object]


class LocalSystem:
    """A private installation, and the `Breaker` of it."""

    def __init__(self, installation: Installation, parts: Parts) -> None:
        self.installation = installation
        self._parts = parts

    async def inject(self, fault: PlannedFault) -> InjectedFault:
        """Break something, wait as long as it lasts, heal it; return when it is whole again."""
        return await break_and_heal(self._parts, fault)

    def deaths(self) -> Mapping[int, int]:
        """Return when each process that ran actions, and is gone, was seen to be gone (nanoseconds)."""
        self._parts.watch.look()
        return self._parts.watch.deaths

    def versions(self) -> dict[str, str]:
        """Return those of the servers; asks them, so call it in a thread."""
        return self._parts.servers.versions()

    @property
    def collapses(self) -> tuple[Collapse, ...]:
        """What ended though nobody had asked it to; it was started again."""
        services = self._parts.services.all
        return tuple(sorted((c for service in services for c in service.collapses), key=lambda c: c.at))


@asynccontextmanager
async def running_locally(
    *,
    executors: int,
    workers: int,
    concurrency: int,
    actions: int,
    lease_seconds: float,
    folder: Path | None = None,
    say: Say,
) -> AsyncIterator[LocalSystem]:
    """Run an installation; everything is ready when it is lent, and gone when it is given back.

    `folder`: where logs and marks are kept; None: they go with the rest. Raises LocalServersError.
    """
    say("Starting PostgreSQL and RabbitMQ in a scratch folder")
    async with running_servers() as servers:
        kept = (folder or servers.folder / "services").resolve()
        place = await to_the_end(_place, servers, kept, lease_seconds)
        services = Services(
            executors=executors_of(place, count=executors),
            workers=workers_of(place, count=workers, concurrency=concurrency, actions=actions),
        )
        say(f"Starting {_count(executors, 'executor')} and {_count(workers, 'worker')}")
        async with _serving(place, services, servers) as system:
            yield system


@asynccontextmanager
async def _serving(place: Place, services: Services, servers: LocalServers) -> AsyncIterator[LocalSystem]:
    installation = Installation(
        amqp_url=SecretStr(place.amqp_url),
        http_urls=tuple(executor.url for executor in services.executors),
        marks_folder=place.marks_folder,
        lease_seconds=place.lease_seconds,
    )
    async with (
        serving(services.all, last_signal=signal.SIGKILL, kept=True),
        Api(installation) as api,
        httpx.AsyncClient(trust_env=False) as http,
        watching(place.marks_folder) as watch,
    ):
        parts = Parts(
            servers=servers, amqp_url=place.amqp_url, services=services, api=api, http=http, watch=watch
        )
        yield LocalSystem(installation, parts)


def _place(servers: LocalServers, folder: Path, lease_seconds: float) -> Place:
    """Prepare a database, a vhost and folders; takes seconds, so call it in a thread."""
    place = Place(
        database_url=servers.postgresql.create_database(_NAME),
        amqp_url=servers.rabbitmq.create_vhost(_NAME),
        logs_folder=folder / "logs",
        marks_folder=folder / "marks",
        lease_seconds=lease_seconds,
    )
    for each in (place.logs_folder, place.marks_folder):
        each.mkdir(parents=True)
    command = [sys.executable, "-m", "turnstile.executor.cli", "migrate"]
    run_once(command, folder=place.logs_folder, environment=place.environment(), user=None)
    return place


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
