"""Group commit: batches of what has gathered, in order, and each caller gets its own answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from turnstile.common.batcher import Batcher, in_steps
from turnstile.common.domain.errors import Overloaded, StatementTimeout


class Server:
    """Answers a batch when the test opens it; records the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.called = asyncio.Event()
        self.refused: set[int] = set()

    async def handle(self, items: Sequence[int]) -> list[str]:
        self.batches.append([*items])
        self.called.set()
        await self.open.wait()
        if self.refused & {*items}:
            raise ValueError("refused")
        return [f"did {item}" for item in items]


@asynccontextmanager
async def running(batcher: Batcher[int, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(batcher.run(), name="batcher")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=5)


async def test_items_that_arrive_during_a_batch_are_the_next_batch_in_order() -> None:
    server = Server()
    batcher = Batcher(server.handle)
    async with running(batcher), asyncio.timeout(5):
        first = asyncio.create_task(batcher.submit(0))
        await server.called.wait()
        rest = [asyncio.create_task(batcher.submit(n)) for n in range(1, 5)]
        listed = asyncio.create_task(batcher.submit_all([5, 6]))
        await asyncio.sleep(0)
        server.open.set()
        assert [await first, *[await task for task in rest]] == [f"did {n}" for n in range(5)]
        assert await listed == ["did 5", "did 6"]
    assert server.batches == [[0], [1, 2, 3, 4, 5, 6]]


async def test_no_batch_is_larger_than_its_bound_and_order_is_kept_across_batches() -> None:
    server = Server()
    server.open.set()
    batcher = Batcher(server.handle, items_max=3)
    async with running(batcher), asyncio.timeout(5):
        assert await batcher.submit_all([]) == []
        assert await batcher.submit(9) == "did 9"
        assert await batcher.submit_all([*range(8)]) == [f"did {n}" for n in range(8)]
    assert server.batches == [[9], [0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_failing_batch_fails_its_callers_and_no_others() -> None:
    server = Server()
    server.open.set()
    server.refused = {1}
    batcher = Batcher(server.handle, items_max=1)
    async with running(batcher), asyncio.timeout(5):
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["did 0", "refused", "did 2"]


async def test_an_item_given_up_is_not_started_and_harms_no_other() -> None:
    server = Server()
    batcher = Batcher(server.handle)
    async with running(batcher), asyncio.timeout(5):
        first, started = (asyncio.create_task(batcher.submit(n)) for n in (0, 9))
        await server.called.wait()
        started.cancel()
        impatient, patient = (asyncio.create_task(batcher.submit(n)) for n in (1, 2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient}, timeout=5)
        server.open.set()
        assert [await first, await patient] == ["did 0", "did 2"]
    assert server.batches == [[0, 9], [2]]


async def test_beyond_the_bound_a_call_is_refused_at_once_and_as_a_whole() -> None:
    server = Server()
    batcher = Batcher(server.handle, items_max=2, waiting_max=4)
    async with running(batcher), asyncio.timeout(5):
        first = asyncio.create_task(batcher.submit_all([0, 1]))
        await server.called.wait()
        second = asyncio.create_task(batcher.submit_all([2, 3, 4]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 items are waiting; the maximum is 4"):
            await batcher.submit_all([5, 6])
        last = asyncio.create_task(batcher.submit(7))
        await asyncio.sleep(0)
        server.open.set()
        assert await first + await second + [await last] == [f"did {n}" for n in (0, 1, 2, 3, 4, 7)]
        assert await batcher.submit_all([5, 6]) == ["did 5", "did 6"]
    assert [item for batch in server.batches for item in batch] == [0, 1, 2, 3, 4, 7, 5, 6]


async def test_a_stop_cancels_waiting_items() -> None:
    server = Server()
    batcher = Batcher(server.handle)
    async with running(batcher), asyncio.timeout(5):
        running_item = asyncio.create_task(batcher.submit(0))
        await server.called.wait()
        waiting = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0)
    for task in (running_item, waiting):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_no_batch_holds_more_bytes_than_its_bound_unless_it_is_a_single_item() -> None:
    server = Server()
    server.open.set()
    batcher = Batcher(server.handle, size_bytes=lambda item: item, batch_bytes_max=10)
    async with running(batcher), asyncio.timeout(5):
        await batcher.submit_all([4, 6, 1, 20, 3, 3, 3, 3])
    assert server.batches == [[4, 6], [1], [20], [3, 3, 3], [3]]


async def test_waiting_items_are_bounded_in_bytes() -> None:
    server = Server()
    batcher = Batcher(server.handle, items_max=1, size_bytes=lambda item: item, waiting_bytes_max=10)
    async with running(batcher), asyncio.timeout(5):
        first = asyncio.create_task(batcher.submit(5))
        await server.called.wait()
        second = asyncio.create_task(batcher.submit(30))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="30 bytes are waiting; the maximum is 10"):
            await batcher.submit(1)
        server.open.set()
        assert [await first, await second, await batcher.submit(1)] == ["did 5", "did 30", "did 1"]


async def test_after_a_statement_timeout_batches_are_smaller_until_one_is_finished() -> None:
    sizes: list[int] = []

    async def handle(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 2:
            raise StatementTimeout("too many")
        return [*items]

    batcher: Batcher[int, int] = Batcher(handle, items_max=8)
    async with running(batcher), asyncio.timeout(5):
        answers = await asyncio.gather(*(batcher.submit(n) for n in range(16)), return_exceptions=True)
        assert sizes == [8, 4, 2, 2]
        assert [isinstance(answer, StatementTimeout) for answer in answers] == [True] * 12 + [False] * 4


async def test_other_tasks_run_between_long_steps() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    async for _ in in_steps(range(6)):
        time.sleep(0.015)  # noqa: ASYNC251  (stands for a computation)
    counting.cancel()
    assert turns >= 2
