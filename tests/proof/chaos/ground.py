"""What a run stands on: private servers, two executors and some workers, a proxy on each of their links.

In: a folder for the logs, and a `Layout`. Out: a `Ground` with everything up and ready; at its end nothing of
it is left. Next: `faults` breaks it, `submitters` load it.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx

from tests.proof.chaos.proxy import Proxy
from tests.proof.chaos.record import RECORD, RECORD_VARIABLE
from tests.proof.chaos.recorder import begin
from turnstile.localservers import LocalServers, running_servers
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without, serving
from turnstile.migrations import migrate

EXECUTORS: Final = ("executor-1", "executor-2")
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
LEASE_SECONDS: Final = 3.0
ACTIONS_MODULE: Final = "tests.proof.chaos.actions"
VHOST: Final = "chaos"
Server = Literal["database", "broker"]
SERVERS: Final[tuple[Server, Server]] = ("database", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which services run, and how they are set."""

    workers: Mapping[str, Mapping[str, str]]
    """By name, the settings of each."""
    actions_module: str
    settings: Mapping[str, str]
    """Of all services."""
    has_proxies: bool = True
    """Whether links can be made bad. A proxy takes time of its own."""


_SETTINGS: Final = {
    "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS}s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_DISPATCH_TIMEOUT": "2s",
    "TURNSTILE_SETTLE_TIMEOUT": "2s",
    "TURNSTILE_DRAIN_TIMEOUT": "3s",
    "TURNSTILE_RETENTION_IDLE_KEYS": "250ms",
    "TURNSTILE_STOP_GRACE": "500ms",
}
FAULTS_LAYOUT: Final = Layout(
    workers={name: {"TURNSTILE_WORKER_CONCURRENCY": "6"} for name in WORKERS},
    actions_module=ACTIONS_MODULE,
    settings=_SETTINGS,
)
_MIGRATE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """All that runs. `database_url` and `amqp_url` lead to the servers without a proxy."""

    servers: LocalServers
    database_url: str
    amqp_url: str
    folder: Path
    services: Mapping[str, Service]
    links: Mapping[tuple[str, Server], Proxy]
    http: httpx.AsyncClient

    @property
    def executors(self) -> list[Service]:
        """The services that answer the API."""
        return [self.services[name] for name in EXECUTORS]


@asynccontextmanager
async def standing_ground(folder: Path, layout: Layout = FAULTS_LAYOUT) -> AsyncIterator[Ground]:
    """Start everything, wait until it is ready, and end it all afterwards, whatever happens."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(running_servers(durable=False))
        database_url = await asyncio.to_thread(servers.postgresql.create_database, "chaos")
        amqp_url = await asyncio.to_thread(servers.rabbitmq.create_vhost, VHOST)
        async with asyncio.timeout(_MIGRATE_SECONDS):
            await migrate(database_url)
            await begin(database_url, amqp_url)
        urls: Mapping[Server, str] = {"database": database_url, "broker": amqp_url}
        names = (*EXECUTORS, *layout.workers)
        links = {
            (name, server): await stack.enter_async_context(Proxy(urls[server]).standing())
            for name in (names if layout.has_proxies else ())
            for server in SERVERS
        }
        services = {
            name: _service(
                name,
                layout,
                {s: links[name, s].url if layout.has_proxies else urls[s] for s in SERVERS},
                folder,
            )
            for name in names
        }
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        ground = Ground(
            servers=servers,
            database_url=database_url,
            amqp_url=amqp_url,
            folder=folder,
            services=services,
            links=links,
            http=http,
        )
        async with serving(list(services.values()), last_signal=signal.SIGKILL, kept=True):
            yield ground


def _service(name: str, layout: Layout, urls: Mapping[Server, str], folder: Path) -> Service:
    port = free_port()
    if name in EXECUTORS:
        arguments = ["turnstile.executor.cli", "serve"]
        own_settings: Mapping[str, str] = {"TURNSTILE_HTTP_PORT": str(port)}
    else:
        arguments = ["turnstile.worker.cli", "serve", "--actions", layout.actions_module]
        own_settings = {
            "TURNSTILE_WORKER_HTTP_PORT": str(port),
            "TURNSTILE_WORKER_NAME": name,
            **layout.workers[name],
        }
    return Service(
        name=name,
        arguments=arguments,
        port=port,
        folder=folder,
        environment={
            **environment_without("TURNSTILE_", importable=Path.cwd()),
            **layout.settings,
            **own_settings,
            RECORD_VARIABLE: str(folder / RECORD),
            "TURNSTILE_DATABASE_URL": urls["database"],
            "TURNSTILE_AMQP_URL": urls["broker"],
        },
    )
