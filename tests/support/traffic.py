"""Requests over AMQP, and conditions with a deadline."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aio_pika

from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTIONS,
    declare_executor,
)

T = TypeVar("T")
DEADLINE_SECONDS = 60.0


def request(body: Mapping[str, Any] | bytes, *, reply_to: str | None = None, **properties: Any) -> Outgoing:
    """Return `execution.requested` as a client sends it."""
    message_id = str(uuid.uuid4())
    given: dict[str, Any] = {"message_id": message_id, "correlation_id": message_id, **properties}
    return Outgoing(
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        body=body if isinstance(body, bytes) else json.dumps(body).encode(),
        type=EXECUTION_REQUESTED,
        reply_to=reply_to,
        app_id="client",
        **given,
    )


def cancel_request(body: Mapping[str, Any], **properties: Any) -> Outgoing:
    """Return `execution.cancel_requested` as a client sends it."""
    return replace(
        request(body, **properties), routing_key=EXECUTION_CANCEL_REQUESTED, type=EXECUTION_CANCEL_REQUESTED
    )


@asynccontextmanager
async def publishing(amqp_url: str) -> AsyncIterator[Publisher]:
    """Lend a connected publisher."""
    timeouts = BrokerTimeouts(wait_seconds=DEADLINE_SECONDS / 2)
    publisher = Publisher(amqp_url, name="test", declare=declare_executor, timeouts=timeouts)
    async with in_background(publisher.run()):
        yield publisher


@asynccontextmanager
async def in_background(
    work: Coroutine[Any, Any, T], *, name: str = "background"
) -> AsyncIterator[asyncio.Task[T]]:
    """Run `work` for the length of the block; at its end it is cancelled, and what it raises is dropped."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def submit(amqp_url: str, bodies: Sequence[Mapping[str, Any] | bytes]) -> None:
    """Publish requests in order, confirmed."""
    async with publishing(amqp_url) as publisher:
        await publisher.publish([request(body) for body in bodies])


async def ask(
    amqp_url: str,
    messages: Callable[[str], Sequence[Outgoing]],
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> list[tuple[str, dict[str, Any]]]:
    """Publish `messages(reply_to)` and return type and body of each reply, in order of publishing."""
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        sent = messages(queue.name)
        async with publishing(amqp_url) as publisher:
            await publisher.publish(sent)
        replies: dict[str | None, tuple[str, dict[str, Any]]] = {}
        async with asyncio.timeout(deadline_seconds), queue.iterator() as incoming:
            async for message in incoming:
                await message.ack()
                replies[message.correlation_id] = (message.type or "", json.loads(message.body))
                if len(replies) == len(sent):
                    break
    return [replies[message.correlation_id] for message in sent]


async def drain_queue(amqp_url: str, name: str, count: int) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """Take `count` messages out of a queue."""
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.get_queue(name, ensure=False)
        messages: list[aio_pika.abc.AbstractIncomingMessage] = []
        async with asyncio.timeout(DEADLINE_SECONDS), queue.iterator() as incoming:
            async for message in incoming:
                await message.ack()
                messages.append(message)
                if len(messages) == count:
                    break
    return messages


async def until(
    condition: Callable[[], object], what: str = "", *, deadline_seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait until `condition()`, or what it awaits, is true; fail with `what` after the deadline.

    The pauses are a tenth of the time that has passed, so that a long wait costs few checks.
    """
    now = asyncio.get_running_loop().time
    began_at = now()
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            holds = await holds
        if holds:
            return
        waited_seconds = now() - began_at
        assert waited_seconds < deadline_seconds, f"not within {deadline_seconds} s: {what}"
        await asyncio.sleep(min(max(waited_seconds / 10, 0.01), 0.2))
