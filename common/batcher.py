"""Group commit: many callers, one statement at a time over all that has gathered meanwhile.

In: items from any number of tasks. Out: each caller's own results. While one batch is with the server the
next gathers; a lone item is a batch of one and never waits for company. Items keep the order in which they
came (P2). Batches and what waits are bounded, in items and in bytes: beyond that a caller is refused with
`Overloaded`, at once. Used for HTTP admissions in the executor and for claims and finishes in the worker.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from turnstile.common.domain.errors import Overloaded, StatementTimeout

WAITING_MAX: Final = 10_000
"""As many as one worker may run at once; whoever meets it meets a server that is out."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes that callers gave in one statement, unless a single item is larger."""
_STEP_SECONDS: Final = 0.02
"""How long one caller may keep the event loop from the others."""

Item = TypeVar("Item")
Result = TypeVar("Result")


_Pending = tuple[Item, asyncio.Future[Result], int]


class Batcher(Generic[Item, Result]):
    """Gathers items into batches for `handle`, which returns one result per item, in order."""

    def __init__(
        self,
        handle: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        items_max: int = 500,
        waiting_max: int = WAITING_MAX,
        size_bytes: Callable[[Item], int] | None = None,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        waiting_bytes_max: int | None = None,
    ) -> None:
        """`size_bytes` tells how large an item is; without it bytes are not bounded."""
        self._handle = handle
        self._items_max = items_max
        self._waiting_max = waiting_max
        self._size_bytes = size_bytes or (lambda _: 0)
        self._batch_bytes_max = batch_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        self._pending: deque[_Pending[Item, Result]] = deque()
        self._pending_bytes = 0
        self._arrived = asyncio.Event()
        self._batch_max = items_max

    async def submit(self, item: Item) -> Result:
        """Have one item handled in the next batch; raises what the batch raised."""
        return (await self.submit_all([item]))[0]

    async def submit_all(self, items: Sequence[Item]) -> list[Result]:
        """Have items handled in order, not necessarily in one batch; raises what a batch of theirs raised.

        Raises Overloaded, and has none of them handled, while too many wait.
        """
        if len(self._pending) + len(items) > self._waiting_max:
            raise Overloaded(f"{len(self._pending)} wait already, at most {self._waiting_max} may")
        sizes = [self._size_bytes(item) for item in items]
        added_bytes = sum(sizes)
        bytes_max = self._waiting_bytes_max
        if bytes_max is not None and self._pending_bytes and self._pending_bytes + added_bytes > bytes_max:
            raise Overloaded(f"{self._pending_bytes} bytes wait already, at most {bytes_max} may")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        self._pending.extend(zip(items, futures, sizes, strict=True))
        self._pending_bytes += added_bytes
        self._arrived.set()
        return await asyncio.gather(*futures)

    async def run(self) -> NoReturn:
        """Handle batches until cancelled; items that wait then are refused with CancelledError."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._pending:
                    await self._handle_next()
        finally:
            for _, future, _ in self._pending:
                future.cancel()

    async def _handle_next(self) -> None:
        # Whoever gave up waiting must not find later that it was done after all.
        taken = [(item, future) for item, future in self._take() if not future.done()]
        if not taken:
            return
        try:
            results = await self._handle([item for item, _ in taken])
        except asyncio.CancelledError:
            for _, future in taken:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (whatever it was belongs to the callers, not to this loop)
            if isinstance(error, StatementTimeout):
                self._batch_max = max(1, len(taken) // 2)
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
            return
        self._batch_max = min(self._batch_max * 2, self._items_max)
        for (_, future), result in zip(taken, results, strict=True):
            if not future.done():
                future.set_result(result)

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """Take the next batch: what has gathered, up to both bounds, and at least one."""
        taken: list[tuple[Item, asyncio.Future[Result]]] = []
        batch_bytes = 0
        while self._pending and len(taken) < self._batch_max:
            item, future, size_bytes = self._pending[0]
            if taken and batch_bytes + size_bytes > self._batch_bytes_max:
                break
            self._pending.popleft()
            batch_bytes += size_bytes
            taken.append((item, future))
        self._pending_bytes -= batch_bytes
        return taken


class Gatherer(Generic[Item]):
    """Hands over in one call what was added meanwhile: one write for many.

    Without a delay that is one turn of the event loop. A delay is for what nobody waits for.
    """

    def __init__(self, hand_over: Callable[[list[Item]], None], *, delay_seconds: float = 0.0) -> None:
        self._hand_over = hand_over
        self._delay_seconds = delay_seconds
        self._items: list[Item] = []

    def add(self, *items: Item) -> None:
        """Have `items` handed over soon."""
        if not self._items and items:
            loop = asyncio.get_running_loop()
            if self._delay_seconds:
                loop.call_later(self._delay_seconds, self.flush)
            else:
                loop.call_soon(self.flush)
        self._items += items

    def flush(self) -> None:
        """Hand over at once what is there."""
        items, self._items = self._items, []
        if items:
            self._hand_over(items)


async def in_steps(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield items one by one, and give other tasks the event loop at short intervals."""
    began_at = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began_at > _STEP_SECONDS:
            await asyncio.sleep(0)
            began_at = time.perf_counter()
