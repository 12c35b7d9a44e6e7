"""The progress of all attempts of a worker: one statement a second, the newest of each, or none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.support.protocol import WORKER, Protocol, offer
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import WorkerId
from turnstile.worker import gateway
from turnstile.worker.gateway import ProgressWriter
from turnstile.worker.progress import Progress
from turnstile.worker.protocol import Offer, WorkerProtocol


class Counted(WorkerProtocol):
    """The protocol of a worker; counts what its statements reported."""

    sizes: list[int]
    meanwhile: Callable[[], None] | None
    """Called once, while the first statement is under way."""

    async def report_progress(self, reports: Sequence[tuple[Offer, Progress]]) -> bool:
        self.sizes.append(len(reports))
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return await super().report_progress(reports)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A connection beside that of the test."""
    database = Database(database_url, application_name="test", connections_max=1)
    await database.open()
    yield database
    await database.close()


def counted(database: Database) -> Counted:
    protocol = Counted(database, WorkerId(WORKER))
    protocol.sizes, protocol.meanwhile = [], None
    return protocol


@asynccontextmanager
async def running(writer: ProgressWriter) -> AsyncIterator[None]:
    task = asyncio.create_task(writer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def claimed(protocol: Protocol, count: int) -> list[int]:
    await protocol.put(max_concurrent=count)
    ids = await protocol.submit(count=count)
    await protocol.claim(*ids)
    return ids


async def stored(protocol: Protocol) -> dict[int, float]:
    rows = await protocol.connection.fetch("SELECT execution_id, done FROM attempt_progress")
    return {row["execution_id"]: row["done"] for row in rows}


async def test_the_attempts_of_a_worker_share_a_statement_and_the_newest_of_each_counts(
    protocol: Protocol, database: Database
) -> None:
    ids = await claimed(protocol, 3)
    record = counted(database)
    writer = ProgressWriter(record)
    for done in range(100):
        for execution_id in ids:
            writer.put(offer(execution_id, 1), Progress(done=done))
    async with running(writer):
        await until(lambda: record.sizes, "the first statement")
        # From another thread, as of a plain function's runner, within the pause after that statement.
        await asyncio.to_thread(writer.put, offer(ids[0], 1), Progress(done=100))
        await asyncio.to_thread(writer.put, offer(ids[0], 1), Progress(done=101))
        newest = {ids[0]: 101, ids[1]: 99, ids[2]: 99}

        async def is_stored() -> bool:
            return await stored(protocol) == newest

        await until(is_stored, "the second statement")
    assert record.sizes == [3, 1]


async def test_what_is_reported_during_a_statement_is_in_the_next_one(
    protocol: Protocol, database: Database
) -> None:
    (one,) = await claimed(protocol, 1)
    record = counted(database)
    writer = ProgressWriter(record)
    record.meanwhile = lambda: writer.put(offer(one, 1), Progress(done=8))
    writer.put(offer(one, 1), Progress(done=7))

    async def is_stored() -> bool:
        return await stored(protocol) == {one: 8}

    async with running(writer):
        await until(is_stored, "the newer one", deadline_seconds=20)


async def test_more_attempts_than_fit_one_statement_are_all_written_in_one_round(
    protocol: Protocol, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_PROGRESS_ATTEMPTS_MAX", 2)
    monkeypatch.setattr(gateway, "_PROGRESS_SECONDS", 3600.0)
    ids = await claimed(protocol, 5)
    record = counted(database)
    writer = ProgressWriter(record)
    for execution_id in ids:
        writer.put(offer(execution_id, 1), Progress(done=1))
    async with running(writer):
        await until(lambda: sum(record.sizes) == 5, "the round")
    assert record.sizes == [2, 2, 1]


async def test_the_last_progress_is_written_at_the_end_and_only_if_it_is_not_written_yet(
    protocol: Protocol, database: Database
) -> None:
    (one,) = await claimed(protocol, 1)
    record = counted(database)
    writer = ProgressWriter(record)
    await writer.complete(offer(one, 1))
    assert record.sizes == []
    writer.put(offer(one, 1), Progress(done=7))
    await writer.complete(offer(one, 1))
    await writer.complete(offer(one, 1))
    assert record.sizes == [1]
    assert await stored(protocol) == {one: 7}


async def test_without_a_database_an_attempt_ends_all_the_same(unused_tcp_port: int) -> None:
    database = Database(f"postgresql://127.0.0.1:{unused_tcp_port}/none", application_name="test")
    record = counted(database)
    writer = ProgressWriter(record)
    async with running(writer):
        writer.put(offer(1, 1), Progress(done=7))
        await until(lambda: record.sizes, "a statement that fails")
        started_at = time.monotonic()
        await writer.complete(offer(1, 1))
        assert time.monotonic() - started_at < 10
        # Nothing is left to be written for the attempt.
        record.sizes.clear()
        await writer.complete(offer(1, 1))
        assert record.sizes == []
