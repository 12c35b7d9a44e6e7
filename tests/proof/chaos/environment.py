"""The system of a chaos run: private servers, two executors and some workers, a proxy on each of their
links. A worker has a link to the broker alone.

In: a folder for the logs, and a `Layout`. Out: an `Environment` with everything ready; at its end nothing of
it is left, and the folder stays only if the run has violations. `drain` waits until no work is left.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx

from tests.proof.chaos.listener import declare_listener
from tests.proof.run_log import RUN_LOG, RUN_LOG_VARIABLE
from tests.support.history import session_of
from tests.support.proxy import Proxy
from turnstile.localservers import LocalServers, running_servers
from turnstile.localservers.services import Service, environment_without
from turnstile.stress.local.launcher import Deployment, create_database_and_vhost, running_system

EXECUTORS: Final = ("executor-1", "executor-2")
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
LEASE_SECONDS: Final = 3.0
VHOST: Final = "chaos"
Server = Literal["database", "broker"]
SERVERS: Final[tuple[Server, Server]] = ("database", "broker")
_URL_NAMES: Final[Mapping[Server, str]] = {"database": "DATABASE", "broker": "AMQP"}
VIOLATIONS: Final = "violations.txt"
_POLL_SECONDS: Final = 0.25
_LEFT: Final = """
SELECT (SELECT count(*) FROM ledger.execution WHERE completed_at IS NULL) AS executions,
       (SELECT count(*) FROM ledger.live) AS live, (SELECT count(*) FROM ledger.inbox) AS commands
"""
_GATES: Final = """
SELECT CASE d.kind WHEN 'action' THEN d.name ELSE concat(d.kind, ' ', d.name) END AS name,
       (d.body ->> CASE d.kind WHEN 'action' THEN 'max_concurrent' ELSE 'capacity' END)::integer AS number,
       (d.body ->> 'paused')::boolean AS paused
FROM ledger.definition d WHERE d.kind IN ('action', 'resource', 'pool')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which services run, and their settings."""

    workers: Mapping[str, Mapping[str, str]]
    """The settings of each, by name."""
    actions_module: str
    settings: Mapping[str, str]
    """Of all services."""
    has_proxies: bool = True
    """Whether links can be disturbed. A proxy takes processor time of its own."""


_SLOTS_OF_A_WORKER: Final = 4
WORKER_SLOTS: Final = _SLOTS_OF_A_WORKER * len(WORKERS)
FAULTS_LAYOUT: Final = Layout(
    workers={name: {"TURNSTILE_WORKER_CONCURRENCY": str(_SLOTS_OF_A_WORKER)} for name in WORKERS},
    actions_module="tests.proof.chaos.actions",
    settings={
        "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
        "TURNSTILE_DRAIN_TIMEOUT": "3s",
        "TURNSTILE_STOP_GRACE": "500ms",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Everything that runs. `database_url` and `amqp_url` lead to the servers without a proxy."""

    servers: LocalServers
    database_url: str
    amqp_url: str
    folder: Path
    services: Mapping[str, Service]
    links: Mapping[tuple[str, Server], Proxy]
    http: httpx.AsyncClient

    @property
    def executors(self) -> list[Service]:
        """The services that serve the API."""
        return [self.services[name] for name in EXECUTORS]


@asynccontextmanager
async def running_environment(folder: Path, layout: Layout = FAULTS_LAYOUT) -> AsyncIterator[Environment]:
    """Start everything and a listener, wait until all is ready, and end it afterwards, whatever happens."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(running_servers(durable=False))
        database_url, amqp_url = await create_database_and_vhost(servers.postgresql, servers.rabbitmq, VHOST)
        await declare_listener(amqp_url)
        deployment = Deployment(
            database_url=database_url,
            amqp_url=amqp_url,
            folder=folder,
            settings={**layout.settings, RUN_LOG_VARIABLE: str(folder / RUN_LOG)},
            importable=Path.cwd(),
        )
        urls: Mapping[Server, str] = {"database": database_url, "broker": amqp_url}
        names = (*EXECUTORS, *layout.workers)
        links = {
            (name, server): await stack.enter_async_context(Proxy(urls[server]).listening())
            for name in (names if layout.has_proxies else ())
            for server in servers_of(name)
        }
        services = {
            name: _service(
                name, layout, {s: links[name, s].url for s in servers_of(name) if links}, deployment
            )
            for name in names
        }
        environment = Environment(
            servers=servers,
            database_url=database_url,
            amqp_url=amqp_url,
            folder=folder,
            services=services,
            links=links,
            http=await stack.enter_async_context(httpx.AsyncClient(trust_env=False)),
        )
        executors, workers = environment.executors, [services[name] for name in layout.workers]
        async with running_system(deployment, executors, workers, restart_failed=True):
            yield environment


def servers_of(service: str) -> tuple[Server, ...]:
    """Return the servers to which a service has a link."""
    return SERVERS if service in EXECUTORS else ("broker",)


def _service(name: str, layout: Layout, proxies: Mapping[Server, str], deployment: Deployment) -> Service:
    urls = {f"TURNSTILE_{_URL_NAMES[server]}_URL": url for server, url in proxies.items()}
    if name in EXECUTORS:
        return deployment.executor(name, urls)
    settings = {**layout.workers[name], **urls}
    return deployment.worker(name, actions=layout.actions_module, settings=settings)


def run_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of every process of a run."""
    return {
        **environment_without("TURNSTILE_", importable=Path.cwd()),
        RUN_LOG_VARIABLE: str(folder / RUN_LOG),
    }


async def drain(
    database_url: str,
    limits: Mapping[str, int | None],
    restore: Callable[[], Awaitable[None]] | None,
    *,
    deadline_seconds: float,
) -> dict[str, int]:
    """Wait until no work is left, or until the deadline; return the counts of what is left.

    `limits` has the limit of each action, and the capacity of each resource under `resource NAME`.

    A change that was in progress when its executor was paused may come late: `restore` must undo it. None: no
    action may change.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + deadline_seconds
    async with session_of(database_url) as connection:
        while True:
            row = await connection.fetchrow(_LEFT)
            assert row is not None
            left = {name: count for name, count in row.items() if count}
            if not left or now() > deadline:
                return left
            gates = await connection.fetch(_GATES)
            if any(gate["paused"] or gate["number"] != limits.get(gate["name"]) for gate in gates):
                assert restore is not None, "an action was changed"
                await restore()
            await asyncio.sleep(_POLL_SECONDS)


@dataclass(slots=True, kw_only=True)
class RunFolder:
    """The logs of all processes, and the violations of the run; None until it was checked."""

    path: Path
    violations: list[str] | None = None


@contextmanager
def run_folder(name: str, *, keep: bool) -> Iterator[RunFolder]:
    """Lend a new folder, deleted at the end unless there are violations. `keep`: it stays anyway."""
    folder = RunFolder(path=Path(tempfile.mkdtemp(prefix=f"{name}-")))
    try:
        with _logging_to(folder.path / "harness.log"):
            yield folder
    finally:
        if folder.violations is None:
            logging.getLogger(__name__).error("interrupted; logs are in %s", folder.path)
        elif not folder.violations and not keep:
            shutil.rmtree(folder.path)
        else:
            (folder.path / VIOLATIONS).write_text("".join(f"{each}\n" for each in folder.violations))


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Keep the messages of the harness's own connections about the faults out of the report."""
    root, handler = logging.getLogger(), logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
