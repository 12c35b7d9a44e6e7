"""Exchanges, queues, bindings and message types: every name on the wire, and the declarations.

In: an open channel. Out: what the service needs exists. All declarations are idempotent, so whichever service
starts first creates what it needs; the broker refuses (406) a changed argument of an existing queue. Where
everything else exists, a worker creates only its own queue and no binding, so its broker account needs no
permission to. Keeps P2 (one consumer at a time takes requests, and requeued ones return to the front) and P5
(durable, quorum, dead letters kept however often they are delivered).

Delay queues: a message published to the exchange `executor.retry` or `worker.retry` with an `expiration_ms`
waits in the queue of that name, expires, and is dead-lettered to `executions` under its original routing key,
so it returns to the queue that it was taken from. Each time it is published as a new message, so the broker
sees no cycle. Only the head of a queue expires: all messages of one delay queue need the same expiration.

Direct addresses: an exchange named like the queue behind it, to which only the executor's account may bind.
A message that another queue on `executions` refuses is published there instead.

The leader: workers publish to the direct exchange `executor`, to which nothing but the queues of the leader
is bound (`declare_leader`). The queue of a worker's session has no binding: the default exchange leads to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractQueue
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity
from pamqp.common import FieldTable

from turnstile.common.broker.errors import BrokerUnavailable

QueueType = Literal["quorum", "classic"]

EXECUTIONS = "executions"
DEAD_LETTER_EXCHANGE = "executions.dlx"
DEAD_LETTERS = "executions.dead_letters"
EXECUTOR_REQUESTS = "executor.requests"
EXECUTOR_COMPLETIONS = "executor.completions"
EXECUTOR_RETRY = "executor.retry"
WORKER_RETRY = "worker.retry"

EXECUTOR = "executor"
EXECUTOR_HEARTBEATS = "executor.heartbeats"
EXECUTOR_REPORTS = "executor.reports"

EXECUTION_REQUESTED = "execution.requested"
EXECUTION_CANCEL_REQUESTED = "execution.cancel_requested"
EXECUTION_ACCEPTED = "execution.accepted"
EXECUTION_REJECTED = "execution.rejected"
EXECUTION_CANCEL_ACCEPTED = "execution.cancel_accepted"
EXECUTION_SCHEDULED = "execution.scheduled"
EXECUTION_CANCEL = "execution.cancel"
EXECUTION_STATUS_CHANGED = "execution.status_changed"
EXECUTION_COMPLETED = "execution.completed"

_DELIVERY_LIMIT = 1000
_NO_DELIVERY_LIMIT = 2**31 - 1
"""Never reached. Without the argument RabbitMQ 4.x has a limit of 20, and 3.10 does not keep the order."""
REPORTS_MAX = 50_000
"""How many messages wait in the queue of reports; further ones are refused."""
_REPORTS_BYTES_MAX = 512 * 1024 * 1024
WORKER_QUEUE_EXPIRES_MS = 30 * 60 * 1000
_WORKER_QUEUES_MAX = 9


def scheduled_key(pool: str) -> str:
    """Return the routing key of an execution granted to any worker of the pool."""
    return f"{EXECUTION_SCHEDULED}.{pool}"


def pool_queue(pool: str) -> str:
    """Return the queue that all workers of the pool share."""
    if worker_queue(pool) == WORKER_RETRY:
        raise ValueError(f"a pool cannot be named {pool!r}: worker.{pool} is the workers' delay queue")
    return f"worker.{pool}"


def published_key(routing_key: str) -> str:
    """Return the routing key on `executions` that leads back to the queue of a message.

    An offer published to the queue of its pool by the default exchange has the queue's name as its key.
    """
    if routing_key.startswith("worker."):
        return scheduled_key(routing_key.removeprefix("worker."))
    return routing_key


def worker_queue(worker_id: str) -> str:
    """Return the control queue of one worker; the default exchange routes to it under this name."""
    return f"worker.{worker_id}"


def worker_queues(worker_id: str) -> list[str]:
    """Return all possible names of a control queue: the worker uses the next one where its node is down."""
    first = worker_queue(worker_id)
    return [first, *(f"{first}.{number}" for number in range(2, _WORKER_QUEUES_MAX + 1))]


def session_queue(worker_id: str, session: int) -> str:
    """Return the queue of one session of a worker process, declared by that worker and exclusive to it."""
    return f"{worker_queue(worker_id)}.{session}"


def completed_key(action_ref: str, status: str) -> str:
    """Return the second routing key of `execution.completed`: for listeners to some actions or outcomes.

    `execution.completed.reports.render.*` matches one action, `execution.completed.#.failed` one outcome.
    """
    return f"{EXECUTION_COMPLETED}.{action_ref}.{status}"


async def declare_leader(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create all that leader and workers need but the queues of sessions: exchanges, the leader's queues."""
    executions = await _declare_exchanges(channel, queue_type)
    direct = await channel.declare_exchange(EXECUTOR, ExchangeType.DIRECT, durable=True)
    # The leader alone consumes: at any time all of a queue is held by one process, in order.
    single = _arguments(queue_type) | {"x-single-active-consumer": True}
    requests = await channel.declare_queue(EXECUTOR_REQUESTS, durable=True, arguments=single)
    # A dead letter that was published to the queue by name is replayed under that name.
    for key in (EXECUTION_REQUESTED, EXECUTION_CANCEL_REQUESTED, EXECUTOR_REQUESTS):
        await requests.bind(executions, key)
    await _declare_direct_exchange(channel, requests)
    for name in (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS):
        queue = await channel.declare_queue(name, durable=True, arguments=single)
        await queue.bind(direct, name)
    # Logs and progress are the only messages that may be refused: their worker sends them with the end.
    bounded = _arguments(queue_type) | {
        "x-max-length": REPORTS_MAX, "x-max-length-bytes": _REPORTS_BYTES_MAX, "x-overflow": "reject-publish",
    }  # fmt: skip
    reports = await channel.declare_queue(EXECUTOR_REPORTS, durable=True, arguments=bounded)
    await reports.bind(direct, EXECUTOR_REPORTS)


async def declare_events(channel: AbstractChannel) -> None:
    """Create the exchange of events alone: no queue whose node is down then delays them."""
    await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)


async def declare_executor(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create the executor's queues, the delay queues and the dead-letter queue."""
    executions = await _declare_exchanges(channel, queue_type)
    requests = await channel.declare_queue(
        EXECUTOR_REQUESTS,
        durable=True,
        arguments=_arguments(queue_type) | {"x-single-active-consumer": True},
    )
    await requests.bind(executions, EXECUTION_REQUESTED)
    await requests.bind(executions, EXECUTION_CANCEL_REQUESTED)
    await _declare_direct_exchange(channel, requests)
    # A message published to the queue by name keeps that key in the delay queue and in the dead letters.
    await requests.bind(executions, EXECUTOR_REQUESTS)
    completions = await channel.declare_queue(
        EXECUTOR_COMPLETIONS, durable=True, arguments=_arguments(queue_type)
    )
    await completions.bind(executions, EXECUTION_COMPLETED)
    await completions.bind(executions, EXECUTOR_COMPLETIONS)
    await _declare_direct_exchange(channel, completions)
    await _declare_delay(channel, EXECUTOR_RETRY, queue_type)
    await _declare_delay(channel, WORKER_RETRY, queue_type)


async def declare_pool(channel: AbstractChannel, pool: str, *, queue_type: QueueType = "quorum") -> None:
    """Create the queue of a pool; the executor does so before it first publishes to it."""
    executions = await _declare_exchanges(channel, queue_type)
    queue = await channel.declare_queue(pool_queue(pool), durable=True, arguments=_arguments(queue_type))
    await queue.bind(executions, scheduled_key(pool))


async def ensure_pool(channel: AbstractChannel, pool: str, *, queue_type: QueueType = "quorum") -> None:
    """Create the queue of a pool only where it is missing."""

    async def check() -> None:
        await channel.declare_queue(pool_queue(pool), passive=True)

    await _create_if_missing(channel, check, lambda: declare_pool(channel, pool, queue_type=queue_type))


async def ready_offers(channel: AbstractChannel, pool: str) -> int:
    """Return how many messages are ready in the queue of a pool, without the unacknowledged ones."""
    try:
        queue = await channel.declare_queue(pool_queue(pool), passive=True)
    except ChannelNotFoundEntity:
        return 0
    return queue.declaration_result.message_count or 0


async def declare_workers(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create the exchanges and queues that all workers share, where they are missing."""
    await _create_if_missing(
        channel, lambda: _check_shared(channel), lambda: _declare_shared(channel, queue_type)
    )


async def declare_own_queue(
    channel: AbstractChannel, queue: str, *, expires_ms: int = WORKER_QUEUE_EXPIRES_MS
) -> None:
    """Create one of `worker_queues`, the control queue of a worker; it expires `expires_ms` after the worker.

    It has no binding: an account that may bind this name could also create an exchange of this name and
    publish any message to it.
    """
    # Classic for every setting: a Raft group per process start is a waste for cancels, and RabbitMQ 3.10
    # closes the connection of a publisher to a quorum queue that is just expiring.
    arguments = _arguments("classic") | {"x-expires": expires_ms}
    await channel.declare_queue(queue, durable=True, arguments=arguments)


async def _check_shared(channel: AbstractChannel) -> None:
    for name in (EXECUTIONS, DEAD_LETTER_EXCHANGE, WORKER_RETRY):
        await channel.declare_exchange(name, passive=True)
    for name in (DEAD_LETTERS, WORKER_RETRY):
        await channel.declare_queue(name, passive=True)


async def _declare_shared(channel: AbstractChannel, queue_type: QueueType) -> None:
    await _declare_exchanges(channel, queue_type)
    await _declare_delay(channel, WORKER_RETRY, queue_type)


async def _create_if_missing(
    channel: AbstractChannel, check: Callable[[], Awaitable[None]], create: Callable[[], Awaitable[None]]
) -> None:
    try:
        await check()
    except ChannelNotFoundEntity as missing:
        # The broker closed the channel because of the missing name.
        await channel.reopen()
        try:
            await create()
        except ChannelAccessRefused:
            raise BrokerUnavailable(f"{missing}: this account may not create it; an executor does") from None


async def _declare_exchanges(channel: AbstractChannel, queue_type: QueueType) -> AbstractExchange:
    executions = await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)
    dead_letters = await channel.declare_exchange(DEAD_LETTER_EXCHANGE, ExchangeType.FANOUT, durable=True)
    # An executor may crash many times before it has stored a dead letter; at a limit the broker drops it.
    arguments = _arguments(queue_type, dead_letter_exchange=None, delivery_limit=_NO_DELIVERY_LIMIT)
    queue = await channel.declare_queue(DEAD_LETTERS, durable=True, arguments=arguments)
    await queue.bind(dead_letters)
    return executions


async def _declare_direct_exchange(channel: AbstractChannel, queue: AbstractQueue) -> None:
    direct = await channel.declare_exchange(queue.name, ExchangeType.TOPIC, durable=True)
    await queue.bind(direct, "#")


async def _declare_delay(channel: AbstractChannel, name: str, queue_type: QueueType) -> None:
    # The default exchange would replace the routing key by the queue's name, so each has an exchange.
    # Dead-lettering stays at-most-once: at-least-once keeps messages whose queue is gone and lets them block
    # the others, and the watchdog publishes a lost delayed message again.
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
        # RabbitMQ requeues to the front only where there is a limit, and dead-letters beyond it. The default
        # of 4.x is 20: too few for a message that is redelivered at each of many restarts.
        arguments["x-delivery-limit"] = delivery_limit
    return arguments
