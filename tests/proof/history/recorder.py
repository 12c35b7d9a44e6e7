"""Records a run: starts the event log and a queue on the exchange, and reads all witnesses at the end.

In: the servers before any service has started; afterwards the folder and what was submitted. Out: a
`Recording`.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aio_pika
import asyncpg
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage
from pydantic_core import from_json

from tests.proof.history.event_log import install, read_events
from tests.proof.history.recording import Published, Recording, Submitted
from tests.proof.history.run_log import RUN_LOG, booted_at, read_runs
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED, EXECUTIONS
from turnstile.common.domain.states import Status

_QUEUE: Final = "history.recorder"
_DEADLINE_SECONDS: Final = 120.0


async def start_recording(database_url: str, amqp_url: str) -> None:
    """Record from here on; the database must be without history."""
    connection = await asyncpg.connect(database_url)
    try:
        await install(connection)
    finally:
        await connection.close()
    await declare_recorder(amqp_url)


async def read_recording(
    database_url: str, amqp_url: str, folder: Path, submitted: Sequence[Submitted]
) -> Recording:
    """Return what was recorded; everything has drained, so each execution has ended."""
    connection = await asyncpg.connect(database_url)
    try:
        events = await read_events(connection)
        ended = await connection.fetch("SELECT id FROM execution WHERE completed_at IS NOT NULL")
    finally:
        await connection.close()
    return Recording(
        events=events,
        runs=read_runs(folder / RUN_LOG),
        published=await read_published(amqp_url, wanted=[row["id"] for row in ended]),
        submitted=submitted,
        booted_at=booted_at(),
    )


async def declare_recorder(amqp_url: str) -> None:
    """Bind a durable queue to what the services publish."""
    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)
        # A quorum queue delivers at most 2,000 messages before it wants acknowledgements.
        queue = await channel.declare_queue(_QUEUE, durable=True, arguments={"x-queue-type": "classic"})
        for key in (EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED):
            await queue.bind(exchange, key)


async def read_published(
    amqp_url: str, *, wanted: Collection[int] = (), patience_seconds: float = 5.0
) -> list[Published]:
    """Return all messages, in the order in which the broker had them; the queue keeps them.

    What was settled was published, but may reach this queue later: waits until a completion of each of the
    executions `wanted` has arrived, or no message has arrived for `patience_seconds`.
    """
    received: list[Published] = []
    missing = set(wanted)
    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=0)
        queue = await channel.declare_queue(_QUEUE, passive=True)
        count = queue.declaration_result.message_count or 0
        complete = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            # Not acknowledged: it stays in the queue for the next reading.
            published = _published(message)
            received.append(published)
            if published.type == EXECUTION_COMPLETED:
                missing.discard(published.execution_id)
            if not missing and len(received) >= count:
                complete.set()

        if count or missing:
            await queue.consume(take)
            so_far = -1
            while not complete.is_set() and len(received) > so_far:
                so_far = len(received)
                # A completion that never arrives is for the rules.
                with suppress(TimeoutError):
                    await asyncio.wait_for(complete.wait(), patience_seconds)
    return received


def _published(message: AbstractIncomingMessage) -> Published:
    body: dict[str, Any] = from_json(message.body)
    return Published(
        type=message.type or message.routing_key or "",
        execution_id=body["execution_id"],
        attempt=body["attempt"],
        status=Status(body["status"]),
    )
