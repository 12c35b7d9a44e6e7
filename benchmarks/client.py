"""The client side of a run: loads, a connected publisher, a database session, waiting for the last end.

Progress is read over HTTP (`queue-stats`), so that no part depends on the tables of this version.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from benchmarks.waiting import DidNotHappen, until
from turnstile.common.broker.connection import Declare
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS, declare_executor
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionRequested
from turnstile.stress.installation import Api

APPLICATION_NAME = "benchmark"
"""The name of each database session of the benchmarks themselves."""
_PACE_SECONDS = 0.01
_POLL_SECONDS = 0.05
_POLL_SECONDS_MAX = 0.5
_POLL_SHARE = 0.05
"""The share of the time for polling: with many keys an answer costs the database milliseconds."""
_FAILED = ("failed", "timeout", "cancelled", "expired", "abandoned")


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


def request_of(action_ref: str, parameters: Mapping[str, object]) -> Outgoing:
    """Return the message that requests an execution."""
    return envelope(
        ExecutionRequested(action_ref=action_ref, parameters=dict(parameters)),
        message_type=EXECUTION_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        app_id="client",
    )


def _key(number: int, keys: int) -> dict[str, str]:
    return {"key": f"key-{number % keys}"} if keys else {}


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
async def database_session(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
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


async def total(api: Api, action_refs: Sequence[str], name: str) -> int:
    """Return the sum of one number of `queue-stats` over these actions."""
    return sum([(await api.queue_stats(ref))[name] for ref in action_refs])


async def completed(api: Api, action_refs: Sequence[str]) -> dict[str, int]:
    """Return for each action how many of its executions have ended."""
    return {ref: (await api.queue_stats(ref))["total_completed"] for ref in action_refs}


async def all_ended(api: Api, expected: Mapping[str, int], *, deadline_seconds: float) -> float:
    """Wait until so many executions of each action have ended; returns the instant of the last one.

    Reads one action at a time, since the measured executor answers.
    """
    deadline = time.monotonic() + deadline_seconds
    last_at = 0.0
    # Before the first question, which would slow down a single fast execution.
    await asyncio.sleep(_POLL_SECONDS)
    for ref, count in expected.items():
        while True:
            began = time.monotonic()
            stats = await api.queue_stats(ref)
            if stats["total_completed"] >= count:
                break
            now = time.monotonic()
            if now > deadline:
                missing = f"{count} ended executions of {ref}, but {stats['total_completed']}"
                raise DidNotHappen(f"not within {deadline_seconds:g} s: {missing}")
            await asyncio.sleep(min(max(_POLL_SECONDS, (now - began) / _POLL_SHARE), _POLL_SECONDS_MAX))
        last_at = max(last_at, datetime.fromisoformat(stats["last_updated"]).timestamp())
    return last_at


async def wait_until_queued(
    api: Api, action_refs: Sequence[str], count: int, *, deadline_seconds: float
) -> None:
    """Wait until `count` executions of these actions wait."""

    async def all_wait() -> bool:
        return await total(api, action_refs, "queue_length") >= count

    await until(all_wait, "all executions wait", deadline_seconds=deadline_seconds, pause_seconds=0.1)


async def require_no_failure(api: Api) -> None:
    """Raise DidNotHappen where an execution ended in another way than by completing."""
    for status in _FAILED:
        if (failed := await api.newest(status=status)) is not None:
            raise DidNotHappen(f"execution {failed['id']} of {failed['action_ref']} is {status}")
