"""What befalls the servers, and the queues in the broker: broken, left so for a while, healed.

In: the ground and one planned fault. Out: nothing, after its healing. Next: `faults` calls these by kind.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import aio_pika
import asyncpg
import httpx
from aio_pika.abc import AbstractChannel

from tests.proof.chaos.ground import VHOST, Ground
from tests.proof.chaos.schedule import Fault
from turnstile.common.broker.topology import worker_queue

_ASK_SECONDS: Final = 20.0
_AGAIN_SECONDS: Final = 0.5
_CLOSE_AGAIN_SECONDS: Final = 1.0
_WATERMARK_ALARM: Final = "0.000001"
_WATERMARK: Final = "0.4"
_NAMES_OLD_SECONDS: Final = 4.0
"""So long after its last change the broker's list of quorum queues is on the disk."""


async def restart_database(ground: Ground, _: Fault) -> None:
    """Stop it in order and start it."""
    await asyncio.to_thread(ground.servers.postgresql.restart, "fast")


async def crash_database(ground: Ground, _: Fault) -> None:
    """Stop it as a crash does, and let it recover."""
    await asyncio.to_thread(ground.servers.postgresql.restart, "immediate")


async def freeze_database(ground: Ground, fault: Fault) -> None:
    """Stop it where it stands: connections stay open, nothing answers."""
    await asyncio.to_thread(ground.servers.postgresql.pause)
    await asyncio.sleep(fault.lasting_seconds)
    await asyncio.to_thread(ground.servers.postgresql.resume)


async def terminate_sessions(ground: Ground, fault: Fault) -> None:
    """End the sessions of all services, again and again."""
    await _again_and_again(fault.lasting_seconds, _AGAIN_SECONDS, lambda: _terminate(ground.database_url))


async def restart_broker(ground: Ground, _: Fault) -> None:
    """Stop it in order and start it."""
    await asyncio.to_thread(ground.servers.rabbitmq.restart)


async def kill_broker(ground: Ground, _: Fault) -> None:
    """Kill it and start it, though not while it could forget a queue that was declared just now."""
    broker = ground.servers.rabbitmq
    while time.time() - _names_changed_at(broker.folder) < _NAMES_OLD_SECONDS:
        await asyncio.sleep(_AGAIN_SECONDS)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


async def freeze_broker(ground: Ground, fault: Fault) -> None:
    """Stop it where it stands: connections stay open, nothing answers."""
    await asyncio.to_thread(ground.servers.rabbitmq.pause)
    await asyncio.sleep(fault.lasting_seconds)
    await asyncio.to_thread(ground.servers.rabbitmq.resume)


async def close_connections(ground: Ground, fault: Fault) -> None:
    """Close every connection from the broker's side, again and again."""

    async def close() -> None:
        # The broker's list of connections is seconds old: one that is gone, or not there yet, is no failure.
        with suppress(httpx.HTTPError):
            await asyncio.to_thread(ground.servers.rabbitmq.close_connections, VHOST)

    await _again_and_again(fault.lasting_seconds, _CLOSE_AGAIN_SECONDS, close)


async def alarm_memory(ground: Ground, fault: Fault) -> None:
    """Let it say that it has no memory left, so that it takes no publishes."""
    ctl = ground.servers.rabbitmq.ctl
    await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", _WATERMARK_ALARM)
    await asyncio.sleep(fault.lasting_seconds)
    await asyncio.to_thread(ctl, "set_vm_memory_high_watermark", _WATERMARK)


async def purge_queue(ground: Ground, fault: Fault) -> None:
    """Throw away what stands in a queue."""
    await _on_channel(ground, lambda channel: _purge(channel, fault.target))


async def delete_queue(ground: Ground, fault: Fault) -> None:
    """Delete a queue under the eyes of its consumers."""
    name = await _queue_name(ground, fault.target)
    if name is not None:
        await _on_channel(ground, lambda channel: _delete(channel, name))


async def _purge(channel: AbstractChannel, name: str) -> None:
    with suppress(aio_pika.exceptions.ChannelNotFoundEntity):
        await (await channel.get_queue(name)).purge()


async def _delete(channel: AbstractChannel, name: str) -> None:
    await channel.queue_delete(name)


async def _queue_name(ground: Ground, target: str) -> str | None:
    """Return the queue's name; that of a worker's own is known to the record."""
    owner = target.removeprefix("own queue of ")
    if owner == target:
        return target
    query = "SELECT id FROM worker WHERE name = $1 ORDER BY started_at DESC LIMIT 1"
    async with asyncio.timeout(_ASK_SECONDS):
        # The database may be down by another fault.
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection = await asyncpg.connect(ground.database_url)
                try:
                    worker_id = await connection.fetchval(query, owner)
                finally:
                    await connection.close()
                return None if worker_id is None else worker_queue(worker_id)
            await asyncio.sleep(_AGAIN_SECONDS)


async def _on_channel(ground: Ground, act: Callable[[AbstractChannel], Awaitable[None]]) -> None:
    async with (
        asyncio.timeout(_ASK_SECONDS),
        await aio_pika.connect(ground.amqp_url) as connection,
        connection.channel() as channel,
    ):
        await act(channel)


async def _terminate(database_url: str) -> None:
    async with asyncio.timeout(_ASK_SECONDS):
        connection = await asyncpg.connect(database_url)
        try:
            await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'turnstile %'"
            )
        finally:
            await connection.close()


async def _again_and_again(
    lasting_seconds: float, pause_seconds: float, act: Callable[[], Awaitable[None]]
) -> None:
    """Do it once, and again until the time is over."""
    deadline = asyncio.get_running_loop().time() + lasting_seconds
    await act()
    while asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(pause_seconds)
        await act()


def _names_changed_at(folder: Path) -> float:
    return max((names.stat().st_mtime for names in folder.glob("data/*/quorum/*/names.dets")), default=0.0)
