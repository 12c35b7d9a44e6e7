"""The client side of a run: requests, a connected publisher, a database session."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.waiting import DidNotHappen, until
from turnstile.common.broker.connection import Declare
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS, declare_executor
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionRequested


def requests(action_refs: Sequence[str], count: int) -> list[Outgoing]:
    """Return `count` requests for these actions in turn."""
    return [
        envelope(
            ExecutionRequested(
                action_ref=action_refs[number % len(action_refs)], parameters={"number": number}
            ),
            message_type=EXECUTION_REQUESTED,
            exchange=EXECUTIONS,
            routing_key=EXECUTION_REQUESTED,
            app_id="client",
        )
        for number in range(count)
    ]


@asynccontextmanager
async def publishing(amqp_url: str, declare: Declare = declare_executor) -> AsyncIterator[Publisher]:
    """Yield a connected publisher."""
    publisher = Publisher(amqp_url, name="bench client", declare=declare)
    task = asyncio.create_task(publisher.run(), name="bench-publisher")
    try:
        # Waits for the connection, so that no measurement includes it.
        await publisher.declare(declare)
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def submit(publisher: Publisher, messages: Sequence[Outgoing], *, batch: int = 2000) -> float:
    """Publish in order, confirmed; returns the instant of the first publish on the database's clock."""
    began_at = time.time()
    for start in range(0, len(messages), batch):
        outcomes = await publisher.publish(messages[start : start + batch])
        if any(outcome is not Publication.CONFIRMED for outcome in outcomes):
            raise DidNotHappen("the broker did not confirm every request")
    return began_at


@asynccontextmanager
async def database_session(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Yield a database session."""
    connection = await asyncpg.connect(database_url, timeout=10, command_timeout=300)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def settled(
    connection: "asyncpg.Connection[asyncpg.Record]", count: int, *, deadline_seconds: float
) -> float:
    """Wait until `count` executions have been settled; returns the instant of the last one."""

    async def enough() -> bool:
        found: int = await connection.fetchval(
            "SELECT coalesce(sum(total_completed), 0)::bigint FROM turnstile.current_queue"
        )
        return found >= count

    await until(enough, f"{count} settled executions", deadline_seconds=deadline_seconds, pause_seconds=0.05)
    at: float = await connection.fetchval(
        "SELECT extract(epoch FROM max(updated_at))::double precision FROM turnstile.current_queue"
    )
    return at
