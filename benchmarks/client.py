"""The client side of a run: loads, a connected publisher, a database session."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from pydantic import JsonValue

from benchmarks.waiting import DidNotHappen
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS, declare_executor
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionRequested

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]

APPLICATION_NAME = "benchmark"
"""The name of each database session of the benchmarks themselves."""
_PACE_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, built before the clock runs."""

    messages: Sequence[Outgoing]
    counts: Mapping[str, int]
    """The number of requests of each action."""

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.messages)


def load(action_refs: Sequence[str], count: int, *, keys: int = 0) -> Load:
    """Return `count` requests for these actions in turn, and for `keys` values of "key" in turn."""
    refs = [action_refs[number % len(action_refs)] for number in range(count)]
    messages = [request_of(ref, {"number": number, **_key(number, keys)}) for number, ref in enumerate(refs)]
    return Load(messages=messages, counts=Counter(refs))


def _key(number: int, keys: int) -> dict[str, JsonValue]:
    return {"key": f"key-{number % keys}"} if keys else {}


def request_of(action_ref: str, parameters: dict[str, JsonValue]) -> Outgoing:
    """Return the message that requests an execution."""
    return envelope(
        ExecutionRequested(action_ref=action_ref, parameters=parameters),
        message_type=EXECUTION_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        app_id="client",
    )


@asynccontextmanager
async def publishing(amqp_url: str) -> AsyncIterator[Publisher]:
    """Yield a connected publisher."""
    publisher = Publisher(amqp_url, name="bench client", declare=declare_executor)
    task = asyncio.create_task(publisher.run(), name="bench-publisher")
    try:
        # Waits for the connection, so that no measurement includes it.
        await publisher.declare(declare_executor)
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


async def submit_evenly(publisher: Publisher, load: Load, per_second: float) -> float:
    """Publish in order at an even pace; returns the seconds that it took."""
    began, sent = time.monotonic(), 0
    while sent < load.count:
        due = min(round((time.monotonic() - began + _PACE_SECONDS) * per_second), load.count)
        await submit(publisher, load.messages[sent:due])
        sent = due
        await asyncio.sleep(_PACE_SECONDS)
    return time.monotonic() - began


@asynccontextmanager
async def database_session(database_url: str) -> AsyncIterator["Session"]:
    """Yield a database session."""
    connection = await asyncpg.connect(
        database_url,
        timeout=10,
        command_timeout=300,
        server_settings={"application_name": APPLICATION_NAME},
    )
    try:
        yield connection
    finally:
        await connection.close(timeout=10)
