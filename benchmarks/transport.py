"""Transport: publishing and consuming with the project's bulk channel, compared with aio-pika.

Out: CPU time of this process and of the broker per message, and rates; the same quorum queue and bodies,
confirmed and persistent on both sides, in turn.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Final, cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, HeadersType

from benchmarks.client import load, publishing
from benchmarks.processes import cpu_seconds
from benchmarks.report import Row, Section
from benchmarks.system import RABBITMQ, Servers, Sizes
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS, EXECUTOR_REQUESTS

ROUNDS: Final = 3
BATCH: Final = 100
PREFETCH: Final = 1000
_DEADLINE_SECONDS: Final = 60.0
_OURS: Final = "ours"
_LIBRARY: Final = "aio-pika"
_RATIO: Final = "ratio"

_PROCESS: Final = "this process"
_RATE: Final = "rate"
_UNITS: Final = {_PROCESS: "µs CPU per message", RABBITMQ: "µs CPU per message", _RATE: "1/s"}

Move = Callable[[], Awaitable[None]]
"""Publishes or consumes all messages of a run."""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Publish and consume the same messages both ways, in turn."""
    messages = load(["bench.transport"], sizes.executions).messages
    costs: dict[tuple[str, str], list[dict[str, float]]] = {}
    async with (
        servers.deployment("transport") as deployment,
        await aio_pika.connect(deployment.amqp_url, timeout=10) as connection,
        publishing(deployment.amqp_url) as publisher,
    ):
        channel = await connection.channel(publisher_confirms=True)
        moves: dict[tuple[str, str], Move] = {
            ("publish", _OURS): lambda: _publish_ours(publisher, messages),
            ("consume", _OURS): lambda: _consume_ours(deployment.amqp_url, len(messages)),
            ("publish", _LIBRARY): lambda: _publish_library(channel, messages),
            ("consume", _LIBRARY): lambda: _consume_library(deployment.amqp_url, len(messages)),
        }
        for _ in range(ROUNDS):
            for step, move in moves.items():
                try:
                    costs.setdefault(step, []).append(await _cost(move, len(messages), servers))
                except TimeoutError as error:
                    raise TimeoutError(f"{step}: not done in {_DEADLINE_SECONDS:g} s") from error
    return [_section(costs, len(messages))]


async def _cost(move: Move, count: int, servers: Servers) -> dict[str, float]:
    broker = servers.pids.get(RABBITMQ, ())
    broker_before, client_before, began = cpu_seconds(broker), time.process_time(), time.perf_counter()
    async with asyncio.timeout(_DEADLINE_SECONDS):
        await move()
    return {
        _RATE: count / (time.perf_counter() - began),
        _PROCESS: 1e6 * (time.process_time() - client_before) / count,
        **({RABBITMQ: 1e6 * (cpu_seconds(broker) - broker_before) / count} if broker else {}),
    }


async def _publish_ours(publisher: Publisher, messages: Sequence[Outgoing]) -> None:
    for start in range(0, len(messages), BATCH):
        await publisher.publish(messages[start : start + BATCH])


async def _publish_library(channel: AbstractChannel, messages: Sequence[Outgoing]) -> None:
    exchange = await channel.get_exchange(EXECUTIONS, ensure=False)
    for start in range(0, len(messages), BATCH):
        await asyncio.gather(
            *(
                exchange.publish(_library_message(message), message.routing_key)
                for message in messages[start : start + BATCH]
            )
        )


def _library_message(message: Outgoing) -> aio_pika.Message:
    return aio_pika.Message(
        message.body,
        headers=cast(HeadersType, dict(message.headers or {})),
        content_type=message.content_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=message.message_id,
        type=message.type,
        app_id=message.app_id,
        timestamp=message.timestamp,
    )


async def _consume_ours(amqp_url: str, count: int) -> None:
    consumers = ConsumerConnection(amqp_url, name="bench consumer")
    subscription = consumers.subscribe(EXECUTOR_REQUESTS, prefetch=PREFETCH)
    running = asyncio.create_task(consumers.run(), name="bench-consumer")
    try:
        while count > 0:
            batch = await subscription.next_batch(BATCH)
            subscription.ack(batch)
            count -= len(batch)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _consume_library(amqp_url: str, count: int) -> None:
    taken = 0
    all_taken = asyncio.Event()

    async def take(message: AbstractIncomingMessage) -> None:
        nonlocal taken
        taken += 1
        if taken % BATCH == 0 or taken == count:
            await message.ack(multiple=True)
        if taken == count:
            all_taken.set()

    async with await aio_pika.connect(amqp_url, timeout=10) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(EXECUTOR_REQUESTS, ensure=False)
        await queue.consume(take)
        await all_taken.wait()


def _section(costs: Mapping[tuple[str, str], Sequence[Mapping[str, float]]], count: int) -> Section:
    rows = []
    for step in ("publish", "consume"):
        for quantity in costs[step, _OURS][0]:
            cells = {way: median(cost[quantity] for cost in costs[step, way]) for way in (_OURS, _LIBRARY)}
            # The CPU clock ticks every 10 ms and may show 0 for a short run.
            ratio = {_RATIO: cells[_OURS] / cells[_LIBRARY]} if cells[_LIBRARY] else {}
            rows.append(Row(name=f"{step}, {quantity}", unit=_UNITS[quantity], cells={**cells, **ratio}))
    return Section(
        title=f"transport: {count:,} messages in batches of {BATCH}, quorum queue",
        columns=(_OURS, _LIBRARY, _RATIO),
        rows=tuple(rows),
        note=f"medians of {ROUNDS} runs each, interleaved; persistent, confirmed, acknowledged by the batch",
    )
