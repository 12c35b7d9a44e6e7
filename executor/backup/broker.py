"""The queues of the broker, as a restore sees them: who consumes them, and messages to purge.

In: the broker's URL with an account that may read the executor's queues. Out: counts. Queues that do not
exist have no messages; nothing is declared.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelNotFoundEntity

from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.topology import (
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    EXECUTOR_REQUESTS,
)
from turnstile.common.urls import amqp_urls

ABOUT_EXECUTIONS: Final = (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS)
"""The queues whose messages are about executions and workers that the original knew."""
_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """One queue that exists."""

    name: str
    messages: int
    """Ready ones: while a consumer runs it may hold more."""
    consumers: int


class RestoreBroker:
    """One open channel."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel

    async def counts(self, names: Sequence[str]) -> list[QueueCounts]:
        """Return those of the queues that exist."""
        found = []
        for name in names:
            try:
                result = (await self._channel.declare_queue(name, passive=True)).declaration_result
            except ChannelNotFoundEntity:
                await self._channel.reopen()
                continue
            found.append(
                QueueCounts(
                    name=name, messages=result.message_count or 0, consumers=result.consumer_count or 0
                )
            )
        return found

    async def purge(self, name: str) -> int:
        """Delete the messages of an existing queue; return how many."""
        queue = await self._channel.get_queue(name, ensure=False)
        return (await queue.purge()).message_count or 0


@asynccontextmanager
async def restore_broker(amqp_url: str) -> AsyncIterator[RestoreBroker]:
    """Connect to the first node that accepts; raises BrokerUnavailable, also where rights are missing."""
    try:
        async with asyncio.timeout(_SECONDS):
            connection = await _connect(amqp_url)
    except (OSError, TimeoutError, AMQPError) as error:
        raise BrokerUnavailable(str(error) or type(error).__name__) from error
    try:
        async with connection:
            yield RestoreBroker(await connection.channel())
    except ChannelAccessRefused as error:
        raise BrokerUnavailable(f"{error}; use the account of the executor, or an administrator's") from error
    except AMQPError as error:
        raise BrokerUnavailable(str(error) or type(error).__name__) from error


async def requests_waiting(amqp_url: str) -> int:
    """Return how many requests no executor has taken yet. Raises BrokerUnavailable."""
    async with restore_broker(amqp_url) as broker:
        return sum(counts.messages for counts in await broker.counts([EXECUTOR_REQUESTS]))


async def _connect(amqp_url: str) -> aio_pika.abc.AbstractConnection:
    *others, last = amqp_urls(amqp_url)
    for url in others:
        try:
            return await aio_pika.connect(url, timeout=_SECONDS / 2)
        except (OSError, TimeoutError, AMQPError):
            continue
    return await aio_pika.connect(last, timeout=_SECONDS / 2)
