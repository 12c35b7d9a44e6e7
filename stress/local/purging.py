"""Throws away what stands in queues, as somebody does by a wrong click.

In: the names of queues. Out: how many messages are gone. Never `executor.requests`: nobody has heard of what
waits there yet, so nothing could bring it back.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import aio_pika

from common.broker.topology import EXECUTOR_COMPLETIONS, pool_queue, worker_queue
from stress.names import POOL

_PURGE_SECONDS: Final = 20.0


def queues_to_purge(worker_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the queues that carry ends, offers, and words to workers."""
    return (EXECUTOR_COMPLETIONS, pool_queue(POOL), *(worker_queue(each) for each in worker_ids))


async def purge(amqp_url: str, queues: Iterable[str]) -> int:
    """Purge these queues, those of them that exist; return how many messages they held."""
    messages = 0
    async with asyncio.timeout(_PURGE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        for name in queues:
            try:
                # A channel for each: the broker closes the one that asks for what it does not have.
                async with connection.channel() as channel:
                    purged = await (await channel.get_queue(name, ensure=False)).purge()
            except aio_pika.exceptions.ChannelNotFoundEntity:
                continue
            messages += purged.message_count or 0
    return messages
