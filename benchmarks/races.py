"""The contestants of the throughput part: our system, and the no-logic loop with as many processes.

A race takes prebuilt requests and returns the seconds from the first publish to the last settled execution.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import asyncpg

from benchmarks.client import looking, publishing, requests, settled, submit
from benchmarks.ground import Ground
from benchmarks.no_logic import CREATE_TABLE, SETTLED, declare_loop
from benchmarks.processes import process, running_system
from benchmarks.waiting import DidNotHappen, until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.subscription import Subscription

Race = Callable[[Sequence[Outgoing]], Awaitable[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """What runs, and whose CPU it costs."""

    race: Race
    pids: Mapping[str, Sequence[int]]


@asynccontextmanager
async def our_system(ground: Ground, *, deadline_seconds: float) -> AsyncIterator[Contestant]:
    """Lend an executor and two workers."""
    async with (
        ground.fresh("system") as place,
        running_system(place) as system,
        publishing(place.amqp_url) as publisher,
        looking(place.database_url) as connection,
    ):

        async def race(messages: Sequence[Outgoing]) -> float:
            before: int = await connection.fetchval(
                "SELECT coalesce(sum(total_completed), 0)::bigint FROM action_queue"
            )
            began_at = await submit(publisher, messages)
            ended_at = await settled(connection, before + len(messages), deadline_seconds=deadline_seconds)
            await _require_completed(connection, before + len(messages))
            return ended_at - began_at

        yield Contestant(race=race, pids=system.pids())


async def _require_completed(connection: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
    completed = await connection.fetchval("SELECT count(*) FROM execution WHERE status = 'completed'")
    if completed != count:
        raise DidNotHappen(f"{count} executions completed, {completed} did")


@asynccontextmanager
async def no_logic_loop(ground: Ground, *, told: bool, deadline_seconds: float) -> AsyncIterator[Contestant]:
    """Lend one executor-like and two worker-like processes; `told`: the fourth message goes to the client."""
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(ground.fresh("loop"))
        environment = {**place.environment(), "BENCH_TOLD": "yes" if told else "no"}
        connection = await stack.enter_async_context(looking(place.database_url))
        await connection.execute(CREATE_TABLE)
        publisher = await stack.enter_async_context(publishing(place.amqp_url, declare_loop))
        roles = ("executor", "worker", "worker")
        pids = [
            await stack.enter_async_context(process(role, ["benchmarks.no_logic", role], environment))
            for role in roles
        ]
        told_of = await stack.enter_async_context(_told(place.amqp_url)) if told else None

        async def race(messages: Sequence[Outgoing]) -> float:
            before: int = await connection.fetchval("SELECT count(*) FROM loop_execution")
            began_at = await submit(publisher, messages)
            if told_of is not None:
                async with asyncio.timeout(deadline_seconds):
                    await _receive(told_of, len(messages))
                return time.time() - began_at
            return await _last_settled(connection, before + len(messages), deadline_seconds) - began_at

        # Connected, declared and consuming when the first clock starts.
        await race(requests(["bench.loop"], 100))
        yield Contestant(race=race, pids={"executor": pids[:1], "workers": pids[1:]})


@asynccontextmanager
async def _told(amqp_url: str) -> AsyncIterator[Subscription]:
    consumers = ConsumerConnection(amqp_url, name="bench client consumer")
    task = asyncio.create_task(consumers.run(), name="bench-consumer")
    try:
        yield consumers.subscribe(SETTLED, prefetch=2000, declare=declare_loop)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _receive(subscription: Subscription, count: int) -> None:
    while count > 0:
        deliveries = await subscription.next_batch(500)
        subscription.ack(deliveries)
        count -= len(deliveries)


async def _last_settled(
    connection: "asyncpg.Connection[asyncpg.Record]", count: int, deadline_seconds: float
) -> float:
    async def enough() -> bool:
        found: int = await connection.fetchval("SELECT count(settled_at) FROM loop_execution")
        return found >= count

    await until(enough, f"{count} rows are settled", deadline_seconds=deadline_seconds, pause_seconds=0.05)
    at: float = await connection.fetchval(
        "SELECT extract(epoch FROM max(settled_at))::double precision FROM loop_execution"
    )
    return at
