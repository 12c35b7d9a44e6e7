"""Carries out the schedule: breaks, waits, heals.

In: the planned faults, and the environment. Out: for each an `Injected` with its beginning and its healing.
Two faults never affect one part at the same time. In an interrupted run nothing is healed: the end of the
environment stops what is paused and releases what is frozen.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import aio_pika
import asyncpg
import httpx
from aio_pika.abc import AbstractChannel

from tests.proof.chaos.environment import VHOST, Environment, servers_of
from tests.proof.chaos.schedule import Fault, Kind, parts_of
from tests.support.broker_administration import close_connections
from tests.support.history import session_of
from tests.support.proxy import CLEAR, Flow, LinkState, Proxy
from turnstile.common.broker.topology import session_queue
from turnstile.localservers import LocalServersError
from turnstile.localservers.postgresql import PostgresServer
from turnstile.localservers.rabbitmq import RabbitServer

_DELAY_SECONDS: Final = 0.15
_REQUEST_SECONDS: Final = 20.0
_AGAIN_SECONDS: Final = 0.5
_CLOSE_AGAIN_SECONDS: Final = 1.0
_WATERMARK_ALARM: Final = "0.000001"
_WATERMARK: Final = "0.4"
_QUEUES_SAVED_SECONDS: Final = 4.0
"""Longest time from a change until the broker's list of quorum queues is on the disk."""

Carry = Callable[[Environment, Fault], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that happened."""

    fault: Fault
    began_at: datetime
    healed_at: datetime


async def inject(environment: Environment, faults: Sequence[Fault]) -> list[Injected]:
    """Carry out all of them at their times from now on; return when the last one is healed."""
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
            await _CARRIED_OUT[fault.kind](environment, fault)
            injected.append(Injected(fault=fault, began_at=began_at, healed_at=datetime.now(UTC)))

    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(one(fault), name=f"fault-{fault.number}")
    return sorted(injected, key=lambda i: i.began_at)


def _ended(how: signal.Signals) -> Carry:
    async def end(environment: Environment, fault: Fault) -> None:
        service = environment.services[fault.target]
        await service.end(how)
        await asyncio.sleep(fault.lasting_seconds)
        await service.start()

    return end


async def _pause(environment: Environment, fault: Fault) -> None:
    service = environment.services[fault.target]
    service.pause()
    await asyncio.sleep(fault.lasting_seconds)
    service.resume()


def _links(environment: Environment, target: str) -> list[Proxy]:
    """Return the one link that the target names, or all links of the service."""
    service, _, server = target.partition(" > ")
    return [environment.links[service, known] for known in servers_of(service) if server in ("", known)]


def _killed_behind(state: LinkState) -> Carry:
    """Kill a service after its links were in this state for a while."""

    async def kill(environment: Environment, fault: Fault) -> None:
        service = environment.services[fault.target.partition(" ")[0]]
        with _in_state(_links(environment, fault.target), state):
            await asyncio.sleep(fault.lasting_seconds)
            await service.end(signal.SIGKILL)
        await service.start()

    return kill


def _disturbed(state: LinkState) -> Carry:
    """Put the links of the target into this state for a while."""

    async def disturb(environment: Environment, fault: Fault) -> None:
        with _in_state(_links(environment, fault.target), state):
            await asyncio.sleep(fault.lasting_seconds)

    return disturb


async def _unreachable_database(environment: Environment, fault: Fault) -> None:
    links = [link for (_, server), link in environment.links.items() if server == "database"]
    with _in_state(links, LinkState(refuses=True)):
        await asyncio.sleep(fault.lasting_seconds)


@contextmanager
def _in_state(links: Sequence[Proxy], state: LinkState) -> Iterator[None]:
    for link in links:
        link.state = state
    yield
    for link in links:
        link.state = CLEAR


def _restarted_database(mode: Literal["fast", "immediate"]) -> Carry:
    async def restart(environment: Environment, _: Fault) -> None:
        await asyncio.to_thread(environment.servers.postgresql.restart, mode)

    return restart


def _frozen(server_of: Callable[[Environment], PostgresServer | RabbitServer]) -> Carry:
    """Stop a server: connections stay open, and get no answer."""

    async def freeze(environment: Environment, fault: Fault) -> None:
        server = server_of(environment)
        await asyncio.to_thread(server.pause)
        await asyncio.sleep(fault.lasting_seconds)
        await asyncio.to_thread(server.resume)

    return freeze


async def _terminate_sessions(environment: Environment, fault: Fault) -> None:
    """End the database sessions of all services, repeatedly."""

    async def terminate() -> None:
        async with asyncio.timeout(_REQUEST_SECONDS):
            async with session_of(environment.database_url) as connection:
                await connection.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE 'turnstile %'"
                )

    await _repeat(fault.lasting_seconds, _AGAIN_SECONDS, terminate)


async def _restart_broker(environment: Environment, _: Fault) -> None:
    await asyncio.to_thread(environment.servers.rabbitmq.restart)


async def _kill_broker(environment: Environment, _: Fault) -> None:
    """Kill and start it, but not while a queue that was declared just now would be lost."""
    broker = environment.servers.rabbitmq
    while time.time() - _queues_changed_at(broker.folder) < _QUEUES_SAVED_SECONDS:
        await asyncio.sleep(_AGAIN_SECONDS)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


def _queues_changed_at(folder: Path) -> float:
    return max((names.stat().st_mtime for names in folder.glob("data/*/quorum/*/names.dets")), default=0.0)


async def _close_connections(environment: Environment, fault: Fault) -> None:
    """Close every connection from the broker's side, repeatedly."""

    async def close() -> None:
        # The broker's list of connections is seconds old: a missing one is no failure.
        with suppress(httpx.HTTPError):
            await asyncio.to_thread(close_connections, environment.servers.rabbitmq, VHOST)

    await _repeat(fault.lasting_seconds, _CLOSE_AGAIN_SECONDS, close)


async def _alarm_memory(environment: Environment, fault: Fault) -> None:
    """Raise the broker's memory alarm, so that it accepts no publishes."""
    ctl = environment.servers.rabbitmq.ctl
    await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", _WATERMARK_ALARM)
    await asyncio.sleep(fault.lasting_seconds)
    await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", _WATERMARK)


async def _purge_queue(environment: Environment, fault: Fault) -> None:
    async def purge(channel: AbstractChannel) -> None:
        with suppress(aio_pika.exceptions.ChannelNotFoundEntity):
            await (await channel.get_queue(fault.target)).purge()

    await _on_channel(environment, purge)


async def _delete_queue(environment: Environment, fault: Fault) -> None:
    """Delete a queue that has a consumer."""
    owner = fault.target.removeprefix("session of ")
    if owner == fault.target:

        async def delete(channel: AbstractChannel) -> None:
            await channel.queue_delete(fault.target)

        await _on_channel(environment, delete)
        return
    name = await _session_of(environment, owner)
    # Not over AMQP: it is exclusive to its connection. A missing one is no failure.
    with suppress(LocalServersError):
        await asyncio.to_thread(environment.servers.rabbitmq.ctl, "delete_queue", "--vhost", VHOST, name)


async def _session_of(environment: Environment, worker: str) -> str:
    """Return the queue of the newest session of a worker."""
    query = "SELECT worker_id, session FROM ledger.worker WHERE name = $1 ORDER BY registered_at DESC LIMIT 1"
    async with asyncio.timeout(_REQUEST_SECONDS):
        # The database may be down by another fault.
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with session_of(environment.database_url) as connection:
                    row = await connection.fetchrow(query, worker)
                assert row is not None
                return session_queue(row["worker_id"], row["session"])
            await asyncio.sleep(_AGAIN_SECONDS)


async def _on_channel(environment: Environment, change: Callable[[AbstractChannel], Awaitable[None]]) -> None:
    async with (
        asyncio.timeout(_REQUEST_SECONDS),
        await aio_pika.connect(environment.amqp_url) as connection,
        connection.channel() as channel,
    ):
        await change(channel)


async def _repeat(lasting_seconds: float, pause_seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Do it once, and again until the time is over."""
    deadline = asyncio.get_running_loop().time() + lasting_seconds
    await act()
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(pause_seconds)
        await act()


_HELD: Final = _killed_behind(LinkState(up=Flow.HOLD))
"""Its messages arrive after its death, and the answers reach no process."""
_LOST: Final = _killed_behind(LinkState(up=Flow.DROP))
"""One server receives nothing from it any more, while the other one does."""
_CARRIED_OUT: Final[Mapping[Kind, Carry]] = {
    Kind.EXECUTOR_KILLED: _ended(signal.SIGKILL),
    Kind.EXECUTOR_STOPPED: _ended(signal.SIGTERM),
    Kind.EXECUTOR_PAUSED: _pause,
    Kind.WORKER_KILLED: _ended(signal.SIGKILL),
    Kind.WORKER_STOPPED: _ended(signal.SIGTERM),
    Kind.WORKER_PAUSED: _pause,
    Kind.WORKER_PAUSED_LONG: _pause,
    Kind.DATABASE_RESTARTED: _restarted_database("fast"),
    Kind.DATABASE_CRASHED: _restarted_database("immediate"),
    Kind.DATABASE_FROZEN: _frozen(lambda environment: environment.servers.postgresql),
    Kind.SESSIONS_TERMINATED: _terminate_sessions,
    Kind.BROKER_RESTARTED: _restart_broker,
    Kind.BROKER_KILLED: _kill_broker,
    Kind.BROKER_FROZEN: _frozen(lambda environment: environment.servers.rabbitmq),
    Kind.CONNECTIONS_CLOSED: _close_connections,
    Kind.MEMORY_ALARM: _alarm_memory,
    Kind.QUEUE_PURGED: _purge_queue,
    Kind.QUEUE_DELETED: _delete_queue,
    Kind.LINK_DELAYED: _disturbed(LinkState(delay_seconds=_DELAY_SECONDS)),
    Kind.LINK_CUT: _disturbed(LinkState(refuses=True)),
    Kind.LINK_CUT_ONE_WAY: _disturbed(LinkState(up=Flow.DROP)),
    Kind.LINK_FROZEN: _disturbed(LinkState(up=Flow.HOLD, down=Flow.HOLD)),
    Kind.ANSWERS_DROPPED: _disturbed(LinkState(down=Flow.DROP)),
    # Silence, not a reset: a partition from everything that a worker has.
    Kind.WORKER_CUT_OFF: _disturbed(LinkState(up=Flow.DROP, down=Flow.DROP)),
    Kind.DATABASE_UNREACHABLE: _unreachable_database,
    Kind.EXECUTOR_KILLED_IN_FLIGHT: _HELD,
    Kind.EXECUTOR_KILLED_MESSAGES_LOST: _LOST,
    Kind.WORKER_KILLED_IN_FLIGHT: _HELD,
    Kind.WORKER_KILLED_MESSAGES_LOST: _LOST,
}
assert set(_CARRIED_OUT) == set(Kind)
