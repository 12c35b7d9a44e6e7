"""The event log contains every change to the rows and is append-only; the recorder reads every message."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from tests.proof.history.checker import violations
from tests.proof.history.event_log import install, read_events
from tests.proof.history.recorder import declare_recorder, read_published
from tests.proof.history.recording import Bounds, Published, Recording
from tests.proof.history.replay import EXECUTOR, transitions_of
from tests.support.cases import named
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, connected
from tests.support.traffic import publishing
from turnstile.common.broker.topology import EXECUTION_COMPLETED
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import completed_message

_LONG: Final = 600.0
_BOUNDS: Final = Bounds(idle_seconds=_LONG, leak_seconds=_LONG, reclaim_seconds=_LONG, overlap_seconds=_LONG)


@pytest.fixture
async def executor(database_url: str) -> AsyncIterator[Protocol]:
    """A session with the executor's name, in a logged database."""
    async with connected(database_url) as session:
        await install(session.connection)
        await session.connection.execute(f"SET application_name = '{EXECUTOR}'")
        for name in (WORKER, OTHER_WORKER):
            await session.register(name)
        yield session


@pytest.fixture
async def worker(executor: Protocol, database_url: str) -> AsyncIterator[Protocol]:
    async with connected(database_url) as session:
        yield session


async def run_every_transition(executor: Protocol, worker: Protocol) -> Recording:
    """Take a few executions through every transition, and return what the log says of them."""
    await executor.put(max_concurrent=1)
    first, second, third = await executor.submit(count=3)
    await worker.run(first)
    await executor.settle((first, 1))
    await executor.cancel(third)
    await executor.settle((third, 0))
    await worker.claim(second)
    await executor.lose_lease()
    await executor.reclaim()
    await worker.claim(second, attempt=2, worker=OTHER_WORKER)
    await worker.finish(second, attempt=2, worker=OTHER_WORKER, status=Status.FAILED, retry_delay_seconds=0.0)
    await executor.settle((second, 2))
    await executor.put(max_concurrent=2)
    await executor.wake_due()
    await worker.run(second, attempt=3, worker=OTHER_WORKER)
    await executor.settle((second, 3))
    return await recorded(executor)


async def recorded(executor: Protocol) -> Recording:
    events = await read_events(executor.connection)
    ends = (transitions[-1] for transitions in transitions_of(events).values())
    published = [
        Published(
            type=EXECUTION_COMPLETED, execution_id=end.execution_id, attempt=end.attempt, status=end.status
        )
        for end in ends
        if end.status is not None
    ]
    return Recording(events=events, runs=[], published=published, submitted=[], booted_at=datetime.now(UTC))


async def broken(executor: Protocol) -> list[str]:
    return [str(v) for v in violations(await recorded(executor), bounds=_BOUNDS)]


async def test_the_log_of_the_protocol_statements_breaks_no_promise(
    executor: Protocol, worker: Protocol
) -> None:
    recording = await run_every_transition(executor, worker)
    assert [str(v) for v in violations(recording, bounds=_BOUNDS)] == []
    found = [
        " ".join(str(event.status) for event in transitions)
        for transitions in transitions_of(recording.events).values()
    ]
    assert found == [
        "queued scheduled running completed",
        "queued scheduled running queued scheduled running delayed queued scheduled running completed",
        "queued cancelled",
    ]


FALSIFIED: Final = {
    "UPDATE execution SET result = '1' WHERE status = 'completed'": "P3",
    "UPDATE execution SET status = 'failed', result = NULL WHERE status = 'completed'": "P3",
    "DELETE FROM execution": "P3",
    "INSERT INTO waiting (line_id, place) SELECT queue_id, id FROM execution": "P3",
    "INSERT INTO slot (execution_id, queue_id, attempt, granted_at, offered_at)"
    " SELECT id, queue_id, greatest(attempt, 1), now(), now() FROM execution": "P4",
    "UPDATE attempt SET outcome = 'completed'": "P6",
    "DELETE FROM worker": "P6",
}


async def test_a_manual_change_breaks_a_promise_in_the_log(executor: Protocol, worker: Protocol) -> None:
    await run_every_transition(executor, worker)
    for statement, promise in FALSIFIED.items():
        async with executor.undone():
            await executor.connection.execute(statement)
            assert promise in {line[:2] for line in await broken(executor)}, statement


async def test_the_log_is_append_only(executor: Protocol) -> None:
    for change in ("UPDATE history.log SET seq = DEFAULT", "DELETE FROM history.log", "TRUNCATE history.log"):
        with named(change), pytest.raises(asyncpg.RaiseError, match="append-only"):
            await executor.connection.execute(change)


async def test_a_log_does_not_start_in_a_database_with_history(database_url: str) -> None:
    async with connected(database_url) as session:
        await session.register()
        with pytest.raises(AssertionError, match="worker is not empty"):
            await install(session.connection)


async def test_the_recorder_reads_more_messages_than_a_queue_delivers_at_once(amqp_url: str) -> None:
    count = 3000
    ended_at = datetime.now(UTC)
    await declare_recorder(amqp_url)
    async with publishing(amqp_url) as publisher:
        await publisher.publish(
            [
                completed_message(
                    execution_id=number,
                    action_id=1,
                    action_ref="one",
                    status=Status.COMPLETED,
                    attempt=1,
                    completed_at=ended_at,
                    app_id="worker",
                )
                for number in range(1, count + 1)
            ]
        )
    wanted = range(1, count + 1)
    for _ in range(2):
        found = await read_published(amqp_url, wanted=wanted, patience_seconds=20.0)
        assert [t.execution_id for t in found] == list(wanted)
