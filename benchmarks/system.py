"""What all parts share: sizes, the servers, and a running system with a publisher and a meter.

Progress is read over HTTP (`queue-stats`); the last end is read from the ledger, once all have ended.
"""

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import SecretStr

from benchmarks.client import Load, database_session, load, publishing, submit
from benchmarks.processes import cpu_seconds
from benchmarks.run import Run
from benchmarks.waiting import DidNotHappen, until
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers import BrokerServer, DatabaseServer, LocalServers
from turnstile.localservers.services import Service
from turnstile.stress.installation import Api, Installation, Unreachable, action_path
from turnstile.stress.local import launcher
from turnstile.stress.local.launcher import Deployment, temporary_deployment

if TYPE_CHECKING:
    from benchmarks.client import Session

RABBITMQ: Final = "RabbitMQ"
POSTGRESQL: Final = "PostgreSQL"
_LOG_CHARACTERS_MAX: Final = 2000
_WARM_UP_MAX: Final = 500
_POLL_SECONDS: Final = 0.05
_POLL_SECONDS_MAX: Final = 0.5
_POLL_SHARE: Final = 0.05
"""The share of the time for polling: with many keys an answer costs the database milliseconds."""
_WAL: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
_LAST_END: Final = "SELECT extract(epoch FROM max(e.completed_at)) FROM ledger.execution e WHERE e.id > $1"
_FAILED: Final = ("failed", "timeout", "cancelled", "expired", "abandoned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The amount of work; the defaults take about fifteen minutes on two quiet cores."""

    executions: int = 10_000
    """No-op executions of one run. Jobs that take time, and single hand-overs, are a share of it."""
    rounds: int = 1
    """Runs of each kind, in turn, there and back; medians are shown."""
    clients: int = 200
    """HTTP clients beside the hand-over."""
    held: int = 30_000
    """Executions while a snapshot is held open."""
    overload_seconds: float = 20.0
    loaded: int = 1_000_000
    """Waiting executions of the takeover part."""
    executors: tuple[int, ...] = (1, 2, 4)
    """Numbers of executors of the replicas part."""
    deadline_seconds: float = 120.0
    """Timeout of a run."""

    def share(self, part: int) -> int:
        """Return this part of the executions, at least 10."""
        return max(self.executions // part, 10)


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

    def deployment(self, purpose: str) -> AbstractAsyncContextManager[Deployment]:
        """Return a migrated database and an empty vhost for one measurement."""
        return temporary_deployment(
            self.postgresql,
            self.rabbitmq,
            f"bench_{purpose}_{secrets.token_hex(4)}",
            settings={"TURNSTILE_LOG_LEVEL": "WARNING"},
            importable=Path.cwd(),
            last_signal=signal.SIGTERM,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Executors and workers that run, with a publisher and a database session of the measurement."""

    servers: Servers
    deployment: Deployment
    executors: tuple[Service, ...]
    workers: tuple[Service, ...]
    api: Api
    """Of the first executor."""
    publisher: Publisher
    session: "Session"
    deadline_seconds: float

    async def limit(self, action_ref: str, max_concurrent: int | None) -> None:
        """Change the limit of an action."""
        await self.api.change(action_path(action_ref), {"max_concurrent": max_concurrent})

    async def totals(self, action_refs: Sequence[str], name: str = "total_completed") -> dict[str, int]:
        """Return one number of `queue-stats` of each action: how many of its executions have ended."""
        return {ref: (await self.api.queue_stats(ref))[name] for ref in action_refs}

    async def all_wait(self, action_refs: Sequence[str], count: int) -> None:
        """Wait until `count` executions of these actions wait."""

        async def are_queued() -> bool:
            return sum((await self.totals(action_refs, "queue_length")).values()) >= count

        await until(
            are_queued, "all executions wait", deadline_seconds=self.deadline_seconds, pause_seconds=0.1
        )

    async def all_ended(self, expected: Mapping[str, int]) -> None:
        """Wait until so many executions of each action have ended.

        Reads one action at a time, since the measured executor answers.
        """
        deadline = time.monotonic() + self.deadline_seconds
        # Before the first question, which would slow down a single fast execution.
        await asyncio.sleep(_POLL_SECONDS)
        for ref, count in expected.items():
            while True:
                began = time.monotonic()
                stats = await self.api.queue_stats(ref)
                if stats["total_completed"] >= count:
                    break
                now = time.monotonic()
                if now > deadline:
                    missing = f"{count} ended executions of {ref}, but {stats['total_completed']}"
                    raise DidNotHappen(f"not within {self.deadline_seconds:g} s: {missing}")
                await asyncio.sleep(min(max(_POLL_SECONDS, (now - began) / _POLL_SHARE), _POLL_SECONDS_MAX))

    async def last_end(self, after_id: int = 0) -> float:
        """Return the instant of the last end of the executions after one."""
        return float(await self.session.fetchval(_LAST_END, after_id))

    async def require_no_failure(self) -> None:
        """Raise DidNotHappen where an execution ended in another way than by completing."""
        for status in _FAILED:
            if (failed := await self.api.newest(status=status)) is not None:
                raise DidNotHappen(f"execution {failed['id']} of {failed['action_ref']} is {status}")

    async def measure(self, work: Callable[[], Awaitable[tuple[int, float]]]) -> Run:
        """Do work, which returns its executions and its seconds."""
        parts = {
            "executors": [each.pid for each in self.executors],
            "workers": [each.pid for each in self.workers],
            **self.servers.pids,
        }
        wal_before: int = await self.session.fetchval(_WAL)
        before = {name: cpu_seconds(of) for name, of in parts.items()}
        client_before = time.process_time()
        executions, seconds = await work()
        used = {name: cpu_seconds(of) - before[name] for name, of in parts.items()}
        used["client"] = time.process_time() - client_before
        wal_bytes: int = await self.session.fetchval(_WAL) - wal_before
        return Run(executions=executions, seconds=seconds, cpu_seconds=used, wal_bytes=wal_bytes)

    async def run(self, load: Load) -> Run:
        """Measure a load from its first publish to its last end; raises DidNotHappen where one fails."""

        async def work() -> tuple[int, float]:
            before, after_id = await self.totals(list(load.counts)), await self.api.newest_id()
            began_at = await submit(self.publisher, load.messages)
            await self.all_ended({ref: before[ref] + n for ref, n in load.counts.items()})
            return load.count, await self.last_end(after_id) - began_at

        run = await self.measure(work)
        await self.require_no_failure()
        return run

    async def warm_up(self, action_refs: Sequence[str], count: int, *, keys: int = 0) -> None:
        """Run a few executions of a load before it is measured: at least one of every key."""
        await self.run(load(action_refs, max(min(_WARM_UP_MAX, count), keys), keys=keys))


@asynccontextmanager
async def running_system(
    servers: Servers,
    purpose: str,
    sizes: Sizes,
    *,
    executors: int = 1,
    workers: int = 2,
    concurrency: int = 50,
) -> AsyncIterator[System]:
    """Run executors and workers on a fresh database and vhost; all are ready on entry and gone on exit."""
    settings = {"TURNSTILE_WORKER_CONCURRENCY": str(concurrency)}
    async with servers.deployment(purpose) as deployment:
        leaders = [deployment.executor(f"executor-{number}") for number in range(1, executors + 1)]
        others = [
            deployment.worker(f"bench-{number}", actions="benchmarks.actions", settings=settings)
            for number in range(workers)
        ]
        installation = Installation(amqp_url=SecretStr(deployment.amqp_url), http_urls=(leaders[0].url,))
        async with (
            with_logs([*leaders, *others]),
            launcher.running_system(deployment, leaders, others),
            Api(installation) as api,
            publishing(deployment.amqp_url) as publisher,
            database_session(deployment.database_url) as session,
        ):
            yield System(
                servers=servers,
                deployment=deployment,
                executors=tuple(leaders),
                workers=tuple(others),
                api=api,
                publisher=publisher,
                session=session,
                deadline_seconds=sizes.deadline_seconds,
            )


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
