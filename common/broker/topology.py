"""Exchanges, queues and bindings: every name on the wire, and the declarations that create them.

In: an open channel. Out: what the service needs exists. All declarations are idempotent, so whichever
service starts first creates what it needs; changing an argument of a queue that exists is refused by the
broker (406). Where the rest is there, a worker creates nothing but its own queue, and binds none: its user of
the broker need not be one who may. Keeps P2 (one consumer at a time takes requests, and what it gives back
stands at the front again) and P5 (durable, quorum, dead letters kept however often they are delivered).

Delay: a message published to the exchange `executor.retry` or `worker.retry` with an `expiration_ms` waits
in the queue of that name, expires, and is dead-lettered to `executions` under the routing key it was
published with, so it comes back to the queue it was taken from. Each time it is published as a fresh
message, so the broker sees no cycle. Only the head of a queue expires: give all messages of one delay queue
the same expiration.

Door: an exchange named like the queue behind it; no account but the executor's may bind to it. A message
that a queue of others refuses on `executions` is published there. Next: `connection`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractQueue
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity
from pamqp.common import FieldTable

from turnstile.common.broker.connection import BrokerUnavailable

QueueType = Literal["quorum", "classic"]

EXECUTIONS = "executions"
DEAD_LETTER_EXCHANGE = "executions.dlx"
DEAD_LETTERS = "executions.dead_letters"
EXECUTOR_REQUESTS = "executor.requests"
EXECUTOR_COMPLETIONS = "executor.completions"
EXECUTOR_RETRY = "executor.retry"
WORKER_RETRY = "worker.retry"

EXECUTION_REQUESTED = "execution.requested"
EXECUTION_CANCEL_REQUESTED = "execution.cancel_requested"
EXECUTION_COMPLETED = "execution.completed"

_DELIVERY_LIMIT = 1000
_NO_DELIVERY_LIMIT = 2**31 - 1
"""Never reached. To leave it out would be a limit of 20 on RabbitMQ 4.x, and would cost the order on 3.10."""
WORKER_QUEUE_EXPIRES_MS = 30 * 60 * 1000
_WORKER_QUEUES_MAX = 9


def scheduled_key(pool: str) -> str:
    """Return the routing key of an execution granted to any worker of the pool."""
    return f"execution.scheduled.{pool}"


def pool_queue(pool: str) -> str:
    """Return the queue that all workers of the pool share."""
    if worker_queue(pool) == WORKER_RETRY:
        raise ValueError(f"no pool can be called {pool!r}: its queue is the workers' delay queue")
    return f"worker.{pool}"


def published_key(routing_key: str) -> str:
    """Return the key under which a message comes back to its queue over `executions`.

    An offer that went to its pool's queue by the default exchange has the queue's name for a key.
    """
    if routing_key.startswith("worker."):
        return scheduled_key(routing_key.removeprefix("worker."))
    return routing_key


def worker_queue(worker_id: str) -> str:
    """Return one worker's own queue; the default exchange reaches it under this key."""
    return f"worker.{worker_id}"


def worker_queues(worker_id: str) -> list[str]:
    """Return every name that it may have: another one takes its place where its node is down."""
    first = worker_queue(worker_id)
    return [first, *(f"{first}.{number}" for number in range(2, _WORKER_QUEUES_MAX + 1))]


async def declare_executor(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create what the executor service consumes and where it puts what it cannot use yet."""
    executions = await _declare_exchanges(channel, queue_type)
    requests = await channel.declare_queue(
        EXECUTOR_REQUESTS,
        durable=True,
        arguments=_arguments(queue_type) | {"x-single-active-consumer": True},
    )
    await requests.bind(executions, EXECUTION_REQUESTED)
    await requests.bind(executions, EXECUTION_CANCEL_REQUESTED)
    await _declare_door(channel, requests)
    # What is addressed to the queue itself keeps that key round the delay queue and the dead letters.
    await requests.bind(executions, EXECUTOR_REQUESTS)
    completions = await channel.declare_queue(
        EXECUTOR_COMPLETIONS, durable=True, arguments=_arguments(queue_type)
    )
    await completions.bind(executions, EXECUTION_COMPLETED)
    await completions.bind(executions, EXECUTOR_COMPLETIONS)
    await _declare_door(channel, completions)
    await _declare_delay(channel, EXECUTOR_RETRY, queue_type)
    await _declare_delay(channel, WORKER_RETRY, queue_type)


async def declare_pool(channel: AbstractChannel, pool: str, *, queue_type: QueueType = "quorum") -> None:
    """Create the queue of a pool; the executor does so before it first publishes to it."""
    executions = await _declare_exchanges(channel, queue_type)
    queue = await channel.declare_queue(pool_queue(pool), durable=True, arguments=_arguments(queue_type))
    await queue.bind(executions, scheduled_key(pool))


async def ensure_pool(channel: AbstractChannel, pool: str, *, queue_type: QueueType = "quorum") -> None:
    """Look for the queue of a pool, and create it only where it is missing."""

    async def look() -> None:
        await channel.declare_queue(pool_queue(pool), passive=True)

    await _unless_there(channel, look, lambda: declare_pool(channel, pool, queue_type=queue_type))


async def ready_offers(channel: AbstractChannel, pool: str) -> int:
    """Return how many messages wait in the queue of a pool; those that workers hold do not count."""
    try:
        queue = await channel.declare_queue(pool_queue(pool), passive=True)
    except ChannelNotFoundEntity:
        return 0
    return queue.declaration_result.message_count or 0


async def declare_workers(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create what the workers share where it is missing."""
    await _unless_there(
        channel, lambda: _look_for_shared(channel), lambda: _declare_shared(channel, queue_type)
    )


async def declare_own_queue(
    channel: AbstractChannel, queue: str, *, expires_ms: int = WORKER_QUEUE_EXPIRES_MS
) -> None:
    """Create one worker's own queue, one of `worker_queues`; it is gone `expires_ms` after the worker.

    Bound nowhere, since a name that one may create, bind and consume from is an exchange just as well, on
    which to publish anything.
    """
    # Classic whatever the setting: a Raft group per process start is a waste for cancels, and RabbitMQ 3.10
    # ends the connection of whoever publishes to a quorum queue while it expires.
    arguments = _arguments("classic") | {"x-expires": expires_ms}
    await channel.declare_queue(queue, durable=True, arguments=arguments)


async def _look_for_shared(channel: AbstractChannel) -> None:
    for name in (EXECUTIONS, DEAD_LETTER_EXCHANGE, WORKER_RETRY):
        await channel.declare_exchange(name, passive=True)
    for name in (DEAD_LETTERS, WORKER_RETRY):
        await channel.declare_queue(name, passive=True)


async def _declare_shared(channel: AbstractChannel, queue_type: QueueType) -> None:
    await _declare_exchanges(channel, queue_type)
    await _declare_delay(channel, WORKER_RETRY, queue_type)


async def _unless_there(
    channel: AbstractChannel, look: Callable[[], Awaitable[None]], create: Callable[[], Awaitable[None]]
) -> None:
    try:
        await look()
    except ChannelNotFoundEntity as missing:
        # The broker closes a channel that asked for what is not there.
        await channel.reopen()
        try:
            await create()
        except ChannelAccessRefused:
            raise BrokerUnavailable(f"{missing}: this account may not create it; an executor does") from None


async def _declare_exchanges(channel: AbstractChannel, queue_type: QueueType) -> AbstractExchange:
    executions = await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)
    dead_letters = await channel.declare_exchange(DEAD_LETTER_EXCHANGE, ExchangeType.FANOUT, durable=True)
    # However often an executor dies before it has stored a letter: at a limit the broker would drop it.
    arguments = _arguments(queue_type, dead_letter_exchange=None, delivery_limit=_NO_DELIVERY_LIMIT)
    queue = await channel.declare_queue(DEAD_LETTERS, durable=True, arguments=arguments)
    await queue.bind(dead_letters)
    return executions


async def _declare_door(channel: AbstractChannel, queue: AbstractQueue) -> None:
    door = await channel.declare_exchange(queue.name, ExchangeType.TOPIC, durable=True)
    await queue.bind(door, "#")


async def _declare_delay(channel: AbstractChannel, name: str, queue_type: QueueType) -> None:
    # A queue fed through the default exchange would lose the routing key to its own name; hence the exchange.
    # Dead-lettering stays at-most-once: at-least-once keeps what has no queue any more and lets it clog the
    # rest, and what is delayed here is published again by the watchdog if it is lost.
    exchange = await channel.declare_exchange(name, ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue(
        name, durable=True, arguments=_arguments(queue_type, dead_letter_exchange=EXECUTIONS)
    )
    await queue.bind(exchange, "#")


def _arguments(
    queue_type: QueueType,
    dead_letter_exchange: str | None = DEAD_LETTER_EXCHANGE,
    delivery_limit: int = _DELIVERY_LIMIT,
) -> FieldTable:
    arguments: FieldTable = {"x-queue-type": queue_type}
    if dead_letter_exchange is not None:
        arguments["x-dead-letter-exchange"] = dead_letter_exchange
    if queue_type == "quorum":
        # RabbitMQ puts a given-back message to the front only where there is a limit, and 4.x has one of 20
        # by default, at which a message is dead-lettered: too few for one that merely met many restarts.
        arguments["x-delivery-limit"] = delivery_limit
    return arguments
