"""Breaks a private installation, leaves it so for a while, heals it.

In: a `PlannedFault`. Out: an `InjectedFault`, when what was broken is whole again. Two faults never meet on
one part: the second waits for the first. A fault that is broken off is not healed: who lent the installation
ends what is paused. Next: `drive` calls this when its time has come.
"""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import httpx

from turnstile.localservers import LocalServers
from turnstile.localservers.services import Service
from turnstile.localservers.threads import to_the_end
from turnstile.stress.api import Api
from turnstile.stress.local.deaths import DeathWatch
from turnstile.stress.local.purging import throw_away
from turnstile.stress.local.services import Services
from turnstile.stress.recording import InjectedFault
from turnstile.stress.stage import FaultKind, PlannedFault

_DATABASE: Final = "database"
_BROKER: Final = "broker"


class _Server(Protocol):
    """What both servers can do."""

    def stop(self) -> None: ...

    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that can be broken."""

    servers: LocalServers
    amqp_url: str
    services: Services
    api: Api
    http: httpx.AsyncClient
    """For looks at single services."""
    watch: DeathWatch
    locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))


async def break_and_heal(parts: Parts, fault: PlannedFault) -> InjectedFault:
    """Carry out one fault; raises ServerFailed where what was broken does not come back."""
    workers, executors = parts.services.workers, parts.services.executors
    match fault.kind:
        case FaultKind.KILL_WORKER:
            return await _to_worker(parts, fault, _chosen(workers, fault), _kill)
        case FaultKind.PAUSE_WORKER:
            return await _to_worker(parts, fault, _chosen(workers, fault), _pause)
        case FaultKind.KILL_EXECUTOR:
            return await _to_service(parts, fault, _chosen(executors, fault), _kill)
        case FaultKind.PAUSE_EXECUTOR:
            return await _to_service(parts, fault, _chosen(executors, fault), _pause)
        case FaultKind.RESTART_BROKER:
            return await _restart(parts, fault, _BROKER, parts.servers.rabbitmq)
        case FaultKind.RESTART_DATABASE:
            return await _restart(parts, fault, _DATABASE, parts.servers.postgresql)
        case FaultKind.PURGE_QUEUES:
            return await _purge(parts, fault)
        case FaultKind.CHANGE_LIMIT:
            raise AssertionError("a limit is changed over HTTP")


def _chosen(services: Sequence[Service], fault: PlannedFault) -> Service:
    return services[fault.target % len(services)]


_Break = Callable[[Parts, Service, float], Awaitable[None]]


async def _to_worker(parts: Parts, fault: PlannedFault, worker: Service, break_it: _Break) -> InjectedFault:
    # Asked before it is broken: while it is down, or after it came back, another id may be the newest.
    worker_id = (await _worker_ids(parts)).get(worker.name)
    return replace(await _to_service(parts, fault, worker, break_it), lost_worker=worker_id)


async def _to_service(parts: Parts, fault: PlannedFault, service: Service, break_it: _Break) -> InjectedFault:
    async with parts.locks[service.name]:
        began_at = time.time_ns()
        await break_it(parts, service, fault.lasting_seconds)
        await service.ready(parts.http)
        return _happened(fault, service.name, began_at)


async def _kill(parts: Parts, service: Service, lasting_seconds: float) -> None:
    parts.watch.follow(service.family())
    await service.end(signal.SIGKILL)
    parts.watch.look()
    await asyncio.sleep(lasting_seconds)
    await service.start()


async def _pause(parts: Parts, service: Service, lasting_seconds: float) -> None:
    parts.watch.follow(service.family())
    service.pause()
    await asyncio.sleep(lasting_seconds)
    service.resume()


async def _restart(parts: Parts, fault: PlannedFault, name: str, server: _Server) -> InjectedFault:
    async with parts.locks[name]:
        began_at = time.time_ns()
        await to_the_end(server.stop)
        await asyncio.sleep(fault.lasting_seconds)
        await to_the_end(server.restart)
        return _happened(fault, name, began_at)


async def _purge(parts: Parts, fault: PlannedFault) -> InjectedFault:
    async with parts.locks[_BROKER]:
        worker_ids = (await _worker_ids(parts)).values()
        began_at = time.time_ns()
        messages = await throw_away(parts.amqp_url, worker_ids, fault.lasting_seconds)
        return _happened(fault, f"{messages} messages", began_at)


async def _worker_ids(parts: Parts) -> dict[str, str]:
    """Return under which id each worker holds its lease now, by its name."""
    # The newest comes first; who was killed just now still has a lease too.
    return {worker["name"]: worker["id"] for worker in reversed(await parts.api.live_workers())}


def _happened(fault: PlannedFault, target: str, began_at: int) -> InjectedFault:
    return InjectedFault(kind=fault.kind, target=target, began_at=began_at, healed_at=time.time_ns())
