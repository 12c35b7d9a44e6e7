"""The triggers' log: nothing that happens to the rows escapes it, and nobody can take anything back."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from tests.proof.history.lives import EXECUTOR, lives_of
from tests.proof.history.log import install, read_moves
from tests.proof.history.recording import Recording, Told
from tests.proof.history.tolerances import Tolerances
from tests.proof.history.verdict import violations
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, connected
from turnstile.common.domain.states import Status
from turnstile.common.messages import COMPLETED

_LONG: Final = 600.0
_TOLERANCES: Final = Tolerances(
    idle_seconds=_LONG, leak_seconds=_LONG, reclaim_seconds=_LONG, overlap_seconds=_LONG
)


@pytest.fixture
async def executor(database_url: str) -> AsyncIterator[Protocol]:
    """A session that calls itself an executor, under record."""
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


async def lived(executor: Protocol, worker: Protocol) -> Recording:
    """Let a few executions go every way there is, and return what the log says of them."""
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
    return await judged(executor)


async def judged(executor: Protocol) -> Recording:
    moves = await read_moves(executor.connection)
    ends = (life[-1] for life in lives_of(moves).values())
    told = [
        Told(type=COMPLETED, execution_id=end.execution_id, attempt=end.attempt, status=end.status)
        for end in ends
        if end.status is not None
    ]
    return Recording(moves=moves, runs=[], told=told, submitted=[], booted_at=datetime.now(UTC))


async def broken(executor: Protocol) -> list[str]:
    return [str(v) for v in violations(await judged(executor), tolerances=_TOLERANCES)]


async def test_what_the_statements_do_breaks_no_promise(executor: Protocol, worker: Protocol) -> None:
    recording = await lived(executor, worker)
    assert [str(v) for v in violations(recording, tolerances=_TOLERANCES)] == []
    lives = [" ".join(str(move.status) for move in life) for life in lives_of(recording.moves).values()]
    assert lives == [
        "queued scheduled running completed",
        "queued scheduled running queued scheduled running delayed queued scheduled running completed",
        "queued cancelled",
    ]


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        ("UPDATE execution SET result = '1' WHERE status = 'completed'", "P3"),
        ("UPDATE execution SET status = 'failed', result = NULL WHERE status = 'completed'", "P3"),
        ("DELETE FROM execution", "P3"),
        ("INSERT INTO waiting (queue_id, execution_id) SELECT queue_id, id FROM execution", "P3"),
        (
            "INSERT INTO slot (execution_id, queue_id, slot_number, attempt, granted_at, offered_at)"
            " SELECT id, queue_id, row_number() OVER (), greatest(attempt, 1), now(), now() FROM execution",
            "P4",
        ),
        ("UPDATE attempt SET outcome = 'completed'", "P6"),
        ("DELETE FROM worker", "P6"),
    ],
)
async def test_what_is_done_by_hand_stands_in_the_log(
    executor: Protocol, worker: Protocol, statement: str, promise: str
) -> None:
    await lived(executor, worker)
    await executor.connection.execute(statement)
    assert promise in {line[:2] for line in await broken(executor)}


@pytest.mark.parametrize(
    "statement",
    ["UPDATE history.log SET seq = DEFAULT", "DELETE FROM history.log", "TRUNCATE history.log"],
)
async def test_nothing_is_taken_back_from_the_log(executor: Protocol, statement: str) -> None:
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await executor.connection.execute(statement)


async def test_a_log_that_would_begin_in_the_middle_is_refused(database_url: str) -> None:
    async with connected(database_url) as session:
        await session.register()
        with pytest.raises(AssertionError, match="worker is not empty"):
            await install(session.connection)
