"""Carries out the schedule: breaks, waits, heals.

In: the planned faults, and the ground they hit. Out: for each an `Injected` with the instants at which it
began and was healed. Two faults never meet on one part. Where a run is broken off nothing is healed: the
ground ends what is paused and frees what is frozen. Next: `checks` judges what the system made of it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.proof.chaos.ground import SERVERS, Ground
from tests.proof.chaos.proxy import CLEAR, Flow, Proxy, Weather
from tests.proof.chaos.schedule import Fault, Kind, parts_of
from tests.proof.chaos.server_faults import (
    alarm_memory,
    close_connections,
    crash_database,
    delete_queue,
    freeze_broker,
    freeze_database,
    kill_broker,
    purge_queue,
    restart_broker,
    restart_database,
    terminate_sessions,
)
from turnstile.localservers.services import Service

_DELAY_SECONDS: Final = 0.15

Carry = Callable[[Ground, Fault], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that happened."""

    fault: Fault
    began_at: datetime
    healed_at: datetime


async def inject(ground: Ground, faults: Sequence[Fault]) -> list[Injected]:
    """Let all of them happen at their times from now on; return when the last one is healed."""
    began = asyncio.get_running_loop().time()
    parts: dict[str, asyncio.Lock] = {}
    injected: list[Injected] = []

    async def one(fault: Fault) -> None:
        await asyncio.sleep(began + fault.at_seconds - asyncio.get_running_loop().time())
        async with AsyncExitStack() as held:
            # Always in the same order, so that two faults cannot wait for each other.
            for part in sorted(parts_of(fault.kind, fault.target)):
                await held.enter_async_context(parts.setdefault(part, asyncio.Lock()))
            began_at = datetime.now(UTC)
            await _CARRIED_OUT[fault.kind](ground, fault)
            injected.append(Injected(fault=fault, began_at=began_at, healed_at=datetime.now(UTC)))

    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(one(fault), name=f"fault-{fault.number}")
    return sorted(injected, key=lambda i: i.began_at)


def _ended(how: signal.Signals) -> Carry:
    async def end(ground: Ground, fault: Fault) -> None:
        service = ground.services[fault.target]
        await service.end(how)
        await asyncio.sleep(fault.lasting_seconds)
        await service.start()

    return end


async def _pause(ground: Ground, fault: Fault) -> None:
    service = ground.services[fault.target]
    service.pause()
    await asyncio.sleep(fault.lasting_seconds)
    service.resume()


async def _killed_amid(ground: Ground, fault: Fault) -> None:
    """Kill it while what it says is held up: its words arrive, and nobody is there for the answers."""
    links = [ground.links[fault.target, server] for server in SERVERS]
    await _killed_behind(ground.services[fault.target], links, Weather(up=Flow.HOLD), fault.lasting_seconds)


async def _killed_unheard(ground: Ground, fault: Fault) -> None:
    """Kill it after one server has heard nothing of it any more, while the other one did."""
    service = ground.services[fault.target.partition(" ")[0]]
    links = [_link(ground, fault.target)]
    await _killed_behind(service, links, Weather(up=Flow.DROP), fault.lasting_seconds)


async def _killed_behind(
    service: Service, links: Sequence[Proxy], weather: Weather, lasting_seconds: float
) -> None:
    for link in links:
        link.weather = weather
    await asyncio.sleep(lasting_seconds)
    await service.end(signal.SIGKILL)
    for link in links:
        link.weather = CLEAR
    await service.start()


async def _unreachable_database(ground: Ground, fault: Fault) -> None:
    links = [link for (_, server), link in ground.links.items() if server == "database"]
    await _weather(links, Weather(refuses=True), fault.lasting_seconds)


def _bad_link(weather: Weather) -> Carry:
    async def worsen(ground: Ground, fault: Fault) -> None:
        await _weather([_link(ground, fault.target)], weather, fault.lasting_seconds)

    return worsen


async def _cut_off(ground: Ground, fault: Fault) -> None:
    proxies = [ground.links[fault.target, server] for server in SERVERS]
    # Silence, not a reset: what partitions do.
    await _weather(proxies, Weather(up=Flow.DROP, down=Flow.DROP), fault.lasting_seconds)


async def _weather(proxies: Sequence[Proxy], weather: Weather, lasting_seconds: float) -> None:
    for proxy in proxies:
        proxy.weather = weather
    await asyncio.sleep(lasting_seconds)
    for proxy in proxies:
        proxy.weather = CLEAR


def _link(ground: Ground, target: str) -> Proxy:
    service, _, server = target.partition(" > ")
    return next(ground.links[service, known] for known in SERVERS if known == server)


_CARRIED_OUT: Final[Mapping[Kind, Carry]] = {
    Kind.EXECUTOR_KILLED: _ended(signal.SIGKILL),
    Kind.EXECUTOR_STOPPED: _ended(signal.SIGTERM),
    Kind.EXECUTOR_PAUSED: _pause,
    Kind.WORKER_KILLED: _ended(signal.SIGKILL),
    Kind.WORKER_STOPPED: _ended(signal.SIGTERM),
    Kind.WORKER_PAUSED: _pause,
    Kind.WORKER_PAUSED_LONG: _pause,
    Kind.DATABASE_RESTARTED: restart_database,
    Kind.DATABASE_CRASHED: crash_database,
    Kind.DATABASE_FROZEN: freeze_database,
    Kind.SESSIONS_TERMINATED: terminate_sessions,
    Kind.BROKER_RESTARTED: restart_broker,
    Kind.BROKER_KILLED: kill_broker,
    Kind.BROKER_FROZEN: freeze_broker,
    Kind.CONNECTIONS_CLOSED: close_connections,
    Kind.MEMORY_ALARM: alarm_memory,
    Kind.QUEUE_PURGED: purge_queue,
    Kind.QUEUE_DELETED: delete_queue,
    Kind.LINK_DELAYED: _bad_link(Weather(delay_seconds=_DELAY_SECONDS)),
    Kind.LINK_CUT: _bad_link(Weather(refuses=True)),
    Kind.LINK_CUT_ONE_WAY: _bad_link(Weather(up=Flow.DROP)),
    Kind.LINK_FROZEN: _bad_link(Weather(up=Flow.HOLD, down=Flow.HOLD)),
    Kind.ANSWERS_DROPPED: _bad_link(Weather(down=Flow.DROP)),
    Kind.WORKER_CUT_OFF: _cut_off,
    Kind.DATABASE_UNREACHABLE: _unreachable_database,
    Kind.EXECUTOR_KILLED_AMID: _killed_amid,
    Kind.EXECUTOR_KILLED_UNHEARD: _killed_unheard,
    Kind.WORKER_KILLED_AMID: _killed_amid,
    Kind.WORKER_KILLED_UNHEARD: _killed_unheard,
}
assert set(_CARRIED_OUT) == set(Kind)
