"""Injects faults into a private installation, keeps them for a while, and repairs them.

In: a `PlannedFault`. Out: an `InjectedFault`, when what was broken is ready again. Two faults never overlap
on one target: the second waits for the first. A cancelled fault is not repaired; the owner of the
installation stops paused services.
"""

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import aio_pika
import httpx
from aio_pika.abc import AbstractConnection

from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS
from turnstile.localservers import LocalServers
from turnstile.localservers.postgresql import PostgresServer
from turnstile.localservers.processes import run_in_thread, stat_fields
from turnstile.localservers.rabbitmq import RabbitServer
from turnstile.localservers.services import Collapse, Service
from turnstile.stress.installation import Api, Installation
from turnstile.stress.local.launcher import System
from turnstile.stress.recording import InjectedFault
from turnstile.stress.scenario import FaultKind, PlannedFault
from turnstile.stress.trace import TRACE_SUFFIX

_BROKER: Final = "broker"
_CALL_SECONDS: Final = 20.0
_PURGE_PAUSE_SECONDS: Final = 0.02
PURGED: Final = (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS)
"""What workers send: every message of them is repeated, or the next one replaces it."""
_POLL_SECONDS: Final = 0.1


class ExitWatch:
    """Observes the exits of processes that ran actions, and of services that are killed.

    A process that ran an action has a file in the trace folder with its pid in the name. A run in a process
    that has exited is over, even without a stop in its trace.
    """

    def __init__(self, trace_folder: Path) -> None:
        self._trace_folder = trace_folder
        self._known: set[Path] = set()
        # With the start time of each process, so that another process with the same pid is not mistaken for
        # it.
        self._alive: dict[int, int | None] = {}
        self._exited_at: dict[int, int] = {}

    @property
    def exits(self) -> Mapping[int, int]:
        """When the exit of each process was observed, in nanoseconds."""
        return self._exited_at

    def follow(self, pids: Iterable[int]) -> None:
        """Observe these processes too."""
        for pid in pids:
            self._alive.setdefault(pid, _start_time(pid))

    def poll(self) -> None:
        """Record the processes that have exited."""
        fresh = set(self._trace_folder.glob(f"*{TRACE_SUFFIX}")) - self._known
        self._known |= fresh
        self.follow(int(path.name.partition("-")[0]) for path in fresh)
        now = time.time_ns()
        for pid, started in list(self._alive.items()):
            if started is None or _start_time(pid) != started:
                del self._alive[pid]
                self._exited_at[pid] = now

    async def run(self) -> NoReturn:
        """Poll until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def watching_exits(trace_folder: Path) -> AsyncIterator[ExitWatch]:
    """Yield a watch that polls by itself."""
    watch = ExitWatch(trace_folder)
    task = asyncio.create_task(watch.run(), name="exit-watch")
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSystem:
    """A private installation, and everything in it that faults can hit."""

    installation: Installation
    servers: LocalServers
    system: System
    api: Api
    http: httpx.AsyncClient
    """For readiness checks."""
    watch: ExitWatch
    locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def exits(self) -> Mapping[int, int]:
        """Return when the exit of each process that ran actions was observed (nanoseconds)."""
        self.watch.poll()
        return self.watch.exits

    @property
    def collapses(self) -> tuple[Collapse, ...]:
        """The services that ended by themselves; each was started again."""
        services = self.system.services
        return tuple(sorted((c for service in services for c in service.collapses), key=lambda c: c.at))

    async def inject(self, fault: PlannedFault) -> InjectedFault:
        """Inject a fault, wait for its duration, repair it; return when everything is ready again.

        Raises ServerFailed where the target does not become ready. Not for CHANGE_LIMIT, which goes over HTTP
        as for any operator.
        """
        workers, executors = self.system.workers, self.system.executors
        match fault.kind:
            case FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER:
                worker = workers[fault.target % len(workers)]
                # Read before the fault: during it or afterwards, another id may be the newest.
                worker_id = (await self._worker_ids()).get(worker.name)
                return replace(await self._hit(fault, worker), lost_worker=worker_id)
            case FaultKind.KILL_EXECUTOR | FaultKind.PAUSE_EXECUTOR:
                return await self._hit(fault, executors[fault.target % len(executors)])
            case FaultKind.RESTART_BROKER:
                return await self._restart(fault, _BROKER, self.servers.rabbitmq)
            case FaultKind.RESTART_DATABASE:
                return await self._restart(fault, "database", self.servers.postgresql)
            case FaultKind.PURGE_QUEUES:
                return await self._purge(fault)
            case FaultKind.CHANGE_LIMIT:
                raise AssertionError("a limit is changed over HTTP")

    async def _hit(self, fault: PlannedFault, service: Service) -> InjectedFault:
        """Kill or pause a service, and repair it."""
        async with self.locks[service.name]:
            began_at = time.time_ns()
            self.watch.follow(service.family())
            if fault.kind in (FaultKind.PAUSE_WORKER, FaultKind.PAUSE_EXECUTOR):
                service.pause()
                await asyncio.sleep(fault.lasting_seconds)
                service.resume()
            else:
                await service.end(signal.SIGKILL)
                self.watch.poll()
                await asyncio.sleep(fault.lasting_seconds)
                await service.start()
            await service.ready(self.http)
            return _injected(fault, service.name, began_at)

    async def _restart(
        self, fault: PlannedFault, name: str, server: PostgresServer | RabbitServer
    ) -> InjectedFault:
        async with self.locks[name]:
            began_at = time.time_ns()
            await run_in_thread(server.stop)
            await asyncio.sleep(fault.lasting_seconds)
            await run_in_thread(server.restart)
            return _injected(fault, name, began_at)

    async def _purge(self, fault: PlannedFault) -> InjectedFault:
        async with self.locks[_BROKER]:
            began_at = time.time_ns()
            messages = await discard_messages(self.system.deployment.amqp_url, fault.lasting_seconds)
            return _injected(fault, f"{messages} messages", began_at)

    async def _worker_ids(self) -> dict[str, str]:
        """Return the id of each live worker by its name."""
        # The newest comes first; a worker that was just killed may still have a lease.
        return {worker["name"]: worker["id"] for worker in reversed(await self.api.live_workers())}


def _injected(fault: PlannedFault, target: str, began_at: int) -> InjectedFault:
    return InjectedFault(kind=fault.kind, target=target, began_at=began_at, healed_at=time.time_ns())


async def discard_messages(amqp_url: str, seconds: float) -> int:
    """Purge what workers have sent, again and again for a while; return the number of lost messages.

    Like a mistaken purge. Not `executor.requests`: its messages are known nowhere else, so nothing could
    recover them. A worker's own queue is exclusive to its connection.
    """
    discarded = 0
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(_CALL_SECONDS):
            connection = await stack.enter_async_context(await aio_pika.connect(amqp_url))
        until = time.monotonic() + seconds
        while True:
            async with asyncio.timeout(_CALL_SECONDS):
                for name in PURGED:
                    discarded += await _purge_queue(connection, name)
            if time.monotonic() >= until:
                return discarded
            await asyncio.sleep(_PURGE_PAUSE_SECONDS)


async def _purge_queue(connection: AbstractConnection, name: str) -> int:
    # A channel for each: the broker closes a channel that names a missing queue.
    with suppress(aio_pika.exceptions.ChannelNotFoundEntity):
        async with connection.channel() as channel:
            purged = await (await channel.get_queue(name, ensure=False)).purge()
            return purged.message_count or 0
    return 0


def _start_time(pid: int) -> int | None:
    """Return the start time of a process, in the kernel's own unit; None: it has exited."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None if _has_exited(pid) else 0
    # A killed process stays as a zombie until its parent reaps it, and the parent may be paused.
    return None if fields[0] in "ZX" else int(fields[19])


def _has_exited(pid: int) -> bool:
    # For systems without /proc.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
