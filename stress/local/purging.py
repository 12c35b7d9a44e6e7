"""Throws away what is in queues, as somebody does by a wrong click, or with a consumer of the wrong queue.

In: the ids of the workers, and for how long. Out: how many messages are gone. What stands in a queue is
purged; in a system that keeps up nothing stands anywhere, so a few of those that come by are taken too. Never
of `executor.requests`: nobody has heard of what is there yet, so nothing could bring it back.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, pool_queue, worker_queue
from turnstile.stress.names import POOL

_CALL_SECONDS: Final = 20.0
_TAKEN_MAX: Final = 20
"""Enough to see what becomes of them: each may hold a slot until somebody misses it."""
_SHARED: Final = (EXECUTOR_COMPLETIONS, pool_queue(POOL))
"""They carry ends and offers, and anybody may consume them."""


def queues_to_purge(worker_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the queues that carry ends, offers, and words to workers."""
    return (*_SHARED, *(worker_queue(each) for each in worker_ids))


async def throw_away(amqp_url: str, worker_ids: Collection[str], seconds: float) -> int:
    """Purge the queues, then take what comes by for so long, or until it is enough; return how many."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(_CALL_SECONDS):
            connection = await stack.enter_async_context(await aio_pika.connect(amqp_url))
            purged = [await _purge(connection, name) for name in queues_to_purge(worker_ids)]
        return sum(purged) + await _take(connection, seconds)


async def _purge(connection: AbstractConnection, name: str) -> int:
    # A channel for each: the broker closes the one that asks for what it does not have.
    with suppress(aio_pika.exceptions.ChannelNotFoundEntity):
        async with connection.channel() as channel:
            purged = await (await channel.get_queue(name, ensure=False)).purge()
            return purged.message_count or 0
    return 0


async def _take(connection: AbstractConnection, seconds: float) -> int:
    taken = 0
    enough = asyncio.Event()

    async def take(_: AbstractIncomingMessage) -> None:
        nonlocal taken
        taken += 1
        if taken >= _TAKEN_MAX:
            enough.set()

    async with connection.channel() as channel:
        queues = [await channel.get_queue(name, ensure=False) for name in _SHARED]
        tags = [await queue.consume(take, no_ack=True, timeout=_CALL_SECONDS) for queue in queues]
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
        for queue, tag in zip(queues, tags, strict=True):
            await queue.cancel(tag, timeout=_CALL_SECONDS)
    return taken
