"""Exchanges, queues, bindings and message types: every name on the wire, and the declarations.

In: an open channel. Out: what the service needs exists. All declarations are idempotent, so whichever service
starts first creates what it needs; the broker refuses (406) a changed argument of an existing queue. A worker
creates only the queue of its session, and no binding. Keeps P2 (one consumer at a time takes requests, and
requeued ones return to the front) and P5 (durable, quorum, dead letters kept however often they are
delivered).

Direct address: the exchange `executor.requests`, to which only the executor's account may bind. A request
that another queue on `executions` refuses is published there instead. Workers publish to the direct exchange
`executor`, to which nothing but the queues of the leader is bound. The queue of a session has no binding: the
default exchange leads to it.
"""

from __future__ import annotations

from typing import Final, Literal

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

QueueType = Literal["quorum", "classic"]

EXECUTIONS = "executions"
DEAD_LETTER_EXCHANGE = "executions.dlx"
DEAD_LETTERS = "executions.dead_letters"
EXECUTOR_REQUESTS = "executor.requests"
EXECUTOR_COMPLETIONS = "executor.completions"

EXECUTOR = "executor"
EXECUTOR_HEARTBEATS = "executor.heartbeats"
EXECUTOR_REPORTS = "executor.reports"

QUEUES = (EXECUTOR_REQUESTS, EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS, DEAD_LETTERS)
EXCHANGES = (EXECUTIONS, DEAD_LETTER_EXCHANGE, EXECUTOR, EXECUTOR_REQUESTS)
"""What `declare_executor` creates."""

EXECUTION_REQUESTED = "execution.requested"
EXECUTION_CANCEL_REQUESTED = "execution.cancel_requested"
EXECUTION_ACCEPTED = "execution.accepted"
EXECUTION_REJECTED = "execution.rejected"
EXECUTION_CANCEL_ACCEPTED = "execution.cancel_accepted"
EXECUTION_STATUS_CHANGED = "execution.status_changed"
EXECUTION_COMPLETED = "execution.completed"

_EXCHANGES: Final = {
    EXECUTIONS: ExchangeType.TOPIC,
    DEAD_LETTER_EXCHANGE: ExchangeType.FANOUT,
    EXECUTOR: ExchangeType.DIRECT,
    EXECUTOR_REQUESTS: ExchangeType.TOPIC,
}
_BINDINGS: Final = (
    (DEAD_LETTERS, DEAD_LETTER_EXCHANGE, DEAD_LETTERS),
    (EXECUTOR_REQUESTS, EXECUTIONS, EXECUTION_REQUESTED),
    (EXECUTOR_REQUESTS, EXECUTIONS, EXECUTION_CANCEL_REQUESTED),
    # A dead letter that was published to the queue by name is replayed under that name.
    (EXECUTOR_REQUESTS, EXECUTIONS, EXECUTOR_REQUESTS),
    (EXECUTOR_REQUESTS, EXECUTOR_REQUESTS, "#"),
    (EXECUTOR_COMPLETIONS, EXECUTOR, EXECUTOR_COMPLETIONS),
    (EXECUTOR_HEARTBEATS, EXECUTOR, EXECUTOR_HEARTBEATS),
    (EXECUTOR_REPORTS, EXECUTOR, EXECUTOR_REPORTS),
)
"""Queue, exchange and routing key."""
_DELIVERY_LIMIT = 1000
_NO_DELIVERY_LIMIT = 2**31 - 1
"""Never reached. Without the argument RabbitMQ 4.x has a limit of 20, and 3.10 does not keep the order."""
REPORTS_MAX = 50_000
"""How many messages wait in the queue of reports; further ones are refused."""
_REPORTS_BYTES_MAX = 512 * 1024 * 1024


def session_queue(worker_id: str, session: int) -> str:
    """Return the queue of one session of a worker process, declared by that worker and exclusive to it."""
    return f"worker.{worker_id}.{session}"


def completed_key(action_ref: str, status: str) -> str:
    """Return the second routing key of `execution.completed`: for listeners to some actions or outcomes.

    `execution.completed.reports.render.*` matches one action, `execution.completed.#.failed` one outcome.
    """
    return f"{EXECUTION_COMPLETED}.{action_ref}.{status}"


async def declare_executor(channel: AbstractChannel, *, queue_type: QueueType = "quorum") -> None:
    """Create all that leader and workers need but the queues of sessions: exchanges, the leader's queues."""
    await _declare_exchanges(channel)
    # An executor may crash many times before it has stored a dead letter; at a limit the broker drops it.
    arguments = _arguments(queue_type, dead_letter_exchange=None, delivery_limit=_NO_DELIVERY_LIMIT)
    await channel.declare_queue(DEAD_LETTERS, durable=True, arguments=arguments)
    # The leader alone consumes: at any time all of a queue is held by one process, in order.
    single = _arguments(queue_type) | {"x-single-active-consumer": True}
    for name in (EXECUTOR_REQUESTS, EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS):
        await channel.declare_queue(name, durable=True, arguments=single)
    # Logs and progress are the only messages that may be refused: their worker sends them with the end.
    bounded = _arguments(queue_type) | {
        "x-max-length": REPORTS_MAX, "x-max-length-bytes": _REPORTS_BYTES_MAX, "x-overflow": "reject-publish",
    }  # fmt: skip
    await channel.declare_queue(EXECUTOR_REPORTS, durable=True, arguments=bounded)
    await _bind_queues(channel)


async def declare_routes(channel: AbstractChannel) -> None:
    """Create the exchanges and bindings of `declare_executor` again, without a question to any queue.

    A deleted queue shows at its consumer, a deleted exchange or binding nowhere.
    """
    await _declare_exchanges(channel)
    await _bind_queues(channel)


async def declare_events(channel: AbstractChannel) -> None:
    """Create the exchange of events alone: no queue whose node is down then delays them."""
    await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)


async def _declare_exchanges(channel: AbstractChannel) -> None:
    for name, kind in _EXCHANGES.items():
        await channel.declare_exchange(name, kind, durable=True)


async def _bind_queues(channel: AbstractChannel) -> None:
    for name, exchange, key in _BINDINGS:
        queue = await channel.get_queue(name, ensure=False)
        await queue.bind(exchange, key)


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
