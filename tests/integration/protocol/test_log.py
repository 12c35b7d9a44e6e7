"""append_logs: what running attempts have written so far, fenced and bounded (P6)."""

from collections.abc import Sequence

import pytest

from tests.support.protocol import WORKER, Protocol, offer
from turnstile.worker.attempt_log import LogPiece


async def append(protocol: Protocol, *pieces: tuple[int, int, int, str], worker: str = WORKER) -> bool:
    """Append (execution id, attempt, start, text)."""
    said = [(offer(i, attempt), LogPiece(start=start, text=text)) for i, attempt, start, text in pieces]
    return await protocol.record(worker).append_logs(said)


async def stored(protocol: Protocol) -> Sequence[tuple[int, int, int, str]]:
    rows = await protocol.connection.fetch(
        "SELECT execution_id, attempt, start, text FROM attempt_log ORDER BY 1, 2, 3"
    )
    return [tuple(row) for row in rows]


@pytest.fixture
async def running(protocol: Protocol) -> tuple[int, int]:
    """Two attempts that run."""
    await protocol.put()
    await protocol.register()
    one, two = await protocol.submit(count=2)
    assert await protocol.claim_verdicts(one, two) == ["claimed", "claimed"]
    return one, two


async def test_pieces_of_running_attempts_are_stored_once(
    protocol: Protocol, running: tuple[int, int]
) -> None:
    one, two = running
    for _ in range(2):
        assert await append(protocol, (one, 1, 0, "a\n"), (two, 1, 0, "b\n"))
    assert await append(protocol, (one, 1, 2, "c\n"))
    assert await stored(protocol) == [(one, 1, 0, "a\n"), (one, 1, 2, "c\n"), (two, 1, 0, "b\n")]


async def test_only_a_worker_with_a_live_lease_that_holds_the_attempt_may_append(
    protocol: Protocol, running: tuple[int, int]
) -> None:
    one, two = running
    await protocol.register("worker-2")
    assert await append(protocol, (one, 1, 0, "a\n"), worker="worker-2")
    assert await append(protocol, (one, 2, 0, "a\n"), (one + 1000, 1, 0, "a\n"))
    await protocol.finish(two)
    assert await append(protocol, (two, 1, 0, "late\n"))
    await protocol.lose_lease()
    assert not await append(protocol, (one, 1, 0, "a\n"))
    assert await stored(protocol) == []


async def test_the_oldest_pieces_go_and_the_last_part_stays(
    protocol: Protocol, running: tuple[int, int]
) -> None:
    one, _ = running
    text = "x" * 999 + "\n"
    for number in range(100):
        assert await append(protocol, (one, 1, number * 1000, text))
    starts = [start for _, _, start, _ in await stored(protocol)]
    assert starts == list(range(34_000, 100_000, 1000))


async def test_the_rest_of_a_log_comes_with_its_end_and_says_where_it_starts(
    protocol: Protocol, running: tuple[int, int]
) -> None:
    one, _ = running
    await append(protocol, (one, 1, 0, "a\n"))
    await protocol.finish(one, log="b\n", log_start=2)
    (row,) = await protocol.connection.fetch("SELECT log, log_start FROM attempt")
    assert tuple(row) == ("b\n", 2)
