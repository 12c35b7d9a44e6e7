"""report_progress: the newest of an attempt, from the worker that holds it (P6), at an even cost (P15)."""

from collections.abc import Sequence

import asyncpg
import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, offer
from turnstile.worker.progress import Progress


@pytest.fixture
async def running(protocol: Protocol) -> list[int]:
    """Two running executions, and a second worker."""
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=2, retry={"max_attempts": 3})
    ids = await protocol.submit(count=2)
    await protocol.claim(*ids)
    return ids


async def report(protocol: Protocol, *reports: tuple[int, int, Progress], worker: str = WORKER) -> bool:
    return await protocol.record(worker).report_progress([(offer(i, n), each) for i, n, each in reports])


async def stored(protocol: Protocol) -> Sequence[tuple[int, int, float, float | None, str | None]]:
    rows = await protocol.connection.fetch(
        "SELECT execution_id, attempt, done, total, message FROM attempt_progress ORDER BY 1, 2, version"
    )
    return [tuple(row) for row in rows]


async def test_the_newest_report_of_each_attempt_is_kept(protocol: Protocol, running: list[int]) -> None:
    one, two = running
    assert await report(
        protocol, (one, 1, Progress(done=1, total=3, message="a")), (two, 1, Progress(done=7))
    )
    assert await report(protocol, (one, 1, Progress(done=2, total=3, message="b")))
    assert await stored(protocol) == [(one, 1, 2, 3, "b"), (two, 1, 7, None, None)]


async def test_only_the_worker_with_a_live_lease_that_holds_an_attempt_may_report(
    protocol: Protocol, running: list[int]
) -> None:
    one, two = running
    progress = Progress(done=1)
    assert await report(protocol, (one, 1, progress), worker=OTHER_WORKER)
    assert await report(protocol, (one, 2, progress), (one + 1000, 1, progress))
    await protocol.finish(two)
    assert await report(protocol, (two, 1, progress))
    await protocol.lose_lease()
    assert not await report(protocol, (one, 1, progress))
    assert await stored(protocol) == []


async def test_a_late_report_of_a_reclaimed_attempt_changes_nothing(
    protocol: Protocol, running: list[int]
) -> None:
    one = running[0]
    await report(protocol, (one, 1, Progress(done=1)))
    await protocol.lose_lease()
    await protocol.reclaim()
    await protocol.claim(one, attempt=2, worker=OTHER_WORKER)
    await report(protocol, (one, 2, Progress(done=5)), worker=OTHER_WORKER)
    await protocol.register()
    await report(protocol, (one, 1, Progress(done=2)))
    assert await stored(protocol) == [(one, 1, 1, None, None), (one, 2, 5, None, None)]


async def test_the_table_takes_finite_amounts_only(protocol: Protocol, running: list[int]) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await report(protocol, (running[0], 1, Progress(done=float("inf"))))


async def test_an_old_snapshot_makes_no_report_more_expensive(
    protocol: Protocol, old_snapshot: None, running: list[int]
) -> None:
    async def pages() -> int:
        async with protocol.transaction():
            return (await cost_of(protocol, report(protocol, (running[0], 1, Progress(done=1))))).pages

    await report(protocol, (running[0], 1, Progress(done=0)))
    before = await pages()
    for done in range(400):
        await report(protocol, (running[0], 1, Progress(done=done)))
    assert await pages() <= before * 1.2 + 10
