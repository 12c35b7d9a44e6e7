"""What all parts share: the servers, a fresh database and vhost per measurement, running services, sizes.

Also reads from /proc what processes have used: CPU seconds of process trees, peak memory of one process.
"""

import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from pydantic import SecretStr

from benchmarks.waiting import DidNotHappen
from turnstile.localservers import BrokerServer, DatabaseServer, LocalServers
from turnstile.localservers.processes import all_stat_fields
from turnstile.localservers.services import Service
from turnstile.stress.installation import Api, Installation, Unreachable, action_path
from turnstile.stress.local import launcher
from turnstile.stress.local.launcher import (
    Deployment,
    create_database_and_vhost,
    drop_database_and_vhost,
)

RABBITMQ: Final = "RabbitMQ"
POSTGRESQL: Final = "PostgreSQL"
_LOG_CHARACTERS_MAX: Final = 2000
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def _at_least(least: float, meaning: str) -> Any:
    return typer.Option(min=least, help=meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The amount of work of each part; the defaults take about fifteen minutes on two quiet cores.

    A field with an option is one of the command line.
    """

    executions: Annotated[int, _at_least(10, "Executions of one throughput run.")] = 10_000
    rounds: Annotated[int, _at_least(1, "Runs of each kind, in turn.")] = 1
    """Medians are shown."""
    queued: Annotated[int, _at_least(3, "Executions of the hand-over part.")] = 500
    submits: Annotated[int, _at_least(2, "Single submits on an idle system.")] = 200
    clients: Annotated[int, _at_least(1, "HTTP clients beside the hand-over.")] = 200
    waiting: Annotated[int, _at_least(10, "Waiting executions of the memory part.")] = 100_000
    loaded: Annotated[int, _at_least(10, "Waiting executions of the takeover part.")] = 1_000_000
    messages: Annotated[int, _at_least(100, "Messages of one transport run.")] = 10_000
    jobs: Annotated[int, _at_least(10, "Jobs of 20 ms of the limit-bound part.")] = 4000
    mixed: Annotated[int, _at_least(10, "Jobs of each load of the mixed part.")] = 2000
    paced_seconds: Annotated[float, _at_least(0.1, "Duration of each rate of the rates part.")] = 3.0
    keyed: Annotated[int, _at_least(10, "Executions of one run of the keys part.")] = 10_000
    keys_max: Annotated[int, _at_least(10, "Most concurrency keys.")] = 10_000
    gated: Annotated[int, _at_least(10, "Executions of one run of the gates part.")] = 10_000
    rated_seconds: Annotated[float, _at_least(0.1, "Duration of the load under a rate.")] = 10.0
    submitted: Annotated[int, _at_least(32, "Submissions of database sessions of one run.")] = 20_000
    replicated: Annotated[int, _at_least(10, "Executions of one run of the replicas part.")] = 5000
    held: Annotated[
        int, _at_least(6, "Executions while a snapshot is held open; 200000 for a reliable result.")
    ] = 30_000
    pressed: Annotated[int, _at_least(1, "Executions beside each other neighbour.")] = 5000
    overload_seconds: Annotated[
        float, _at_least(0.5, "Duration of the overload; 300 for a reliable result.")
    ] = 20.0
    executors: tuple[int, ...] = (1, 2, 4)
    """Numbers of executors."""
    deadline_seconds: float = 120.0
    """Timeout of a run."""

    @property
    def keys(self) -> tuple[int, ...]:
        """The numbers of concurrency keys of one action."""
        return (*(number for number in (10, 1000, 10_000) if number < self.keys_max), self.keys_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A PostgreSQL and a RabbitMQ server, and the leading process of each where it is on this machine."""

    postgresql: DatabaseServer
    rabbitmq: BrokerServer
    pids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, servers: LocalServers) -> Self:
        """Return private servers with their processes."""
        return cls(
            postgresql=servers.postgresql,
            rabbitmq=servers.rabbitmq,
            pids={POSTGRESQL: [servers.postgresql.pid], RABBITMQ: [servers.rabbitmq.pid]},
        )

    @asynccontextmanager
    async def deployment(self, purpose: str) -> AsyncIterator[Deployment]:
        """Yield a migrated database and an empty vhost for one measurement."""
        name = f"bench_{purpose}_{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory(prefix="turnstile-bench-") as folder:
            try:
                database_url, amqp_url = await create_database_and_vhost(self.postgresql, self.rabbitmq, name)
                yield Deployment(
                    database_url=database_url,
                    amqp_url=amqp_url,
                    folder=Path(folder),
                    settings={"TURNSTILE_LOG_LEVEL": "WARNING"},
                    importable=Path.cwd(),
                    last_signal=signal.SIGTERM,
                )
            finally:
                await drop_database_and_vhost(self.postgresql, self.rabbitmq, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Executors and their workers."""

    executors: tuple[Service, ...]
    workers: tuple[Service, ...]
    api: Api
    """Of the first executor."""

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of each part by its name."""
        return {
            "executors": [each.pid for each in self.executors],
            "workers": [each.pid for each in self.workers],
        }

    async def limit(self, action_ref: str, max_concurrent: int | None) -> None:
        """Change the limit of an action."""
        await self.api.change(action_path(action_ref), {"max_concurrent": max_concurrent})


@asynccontextmanager
async def running_system(
    deployment: Deployment, *, executors: int = 1, workers: int = 2, concurrency: int = 50
) -> AsyncIterator[System]:
    """Run executors and workers; all are ready on entry and gone on exit."""
    settings = {"TURNSTILE_WORKER_CONCURRENCY": str(concurrency)}
    executor_services = [deployment.executor(f"executor-{number}") for number in range(1, executors + 1)]
    worker_services = [
        deployment.worker(f"bench-{number}", actions="benchmarks.actions", settings=settings)
        for number in range(workers)
    ]
    installation = Installation(
        amqp_url=SecretStr(deployment.amqp_url), http_urls=(executor_services[0].url,)
    )
    async with (
        with_logs([*executor_services, *worker_services]),
        launcher.running_system(deployment, executor_services, worker_services),
        Api(installation) as api,
    ):
        yield System(executors=tuple(executor_services), workers=tuple(worker_services), api=api)


@asynccontextmanager
async def with_logs(services: Sequence[Service]) -> AsyncIterator[None]:
    """Add the ends of the logs to a timeout."""
    try:
        yield
    except (DidNotHappen, Unreachable, TimeoutError) as error:
        logs = [
            f"{service.name}: {service.log.read_text()[-_LOG_CHARACTERS_MAX:]}"
            for service in services
            if service.log.exists()
        ]
        raise DidNotHappen("\n".join([str(error), *logs])) from error


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes and their descendants, including those that have ended."""
    stats = all_stat_fields()
    found = fresh = set(pids)
    while fresh:
        fresh = {pid for pid, fields in stats.items() if int(fields[1]) in fresh} - found
        found = found | fresh
    return sum(int(ticks) for pid in found & stats.keys() for ticks in stats[pid][11:15]) / _TICKS_PER_SECOND


def leader_of(executor_pid: int) -> int:
    """Return the process of an executor's leader: a child process."""
    for pid, fields in all_stat_fields().items():
        if int(fields[1]) == executor_pid and "leader_process" in _command_line(pid):
            return pid
    raise DidNotHappen(f"executor {executor_pid} has no leader process")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def peak_memory_mb(pid: int) -> float:
    """Return the peak resident memory of one process, in MB (10^6 bytes)."""
    return _memory_mb(pid, "VmHWM:")


def present_memory_mb(pid: int) -> float:
    """Return the resident memory of one process, in MB (10^6 bytes)."""
    return _memory_mb(pid, "VmRSS:")


def _memory_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no memory of its own")
