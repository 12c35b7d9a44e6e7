"""Group commit: many callers, one statement at a time for all items that have gathered.

In: items from any number of tasks. Out: each caller's own results. While the server handles one batch the
next gathers; a single item is a batch of one and never waits for others. Items keep their order of arrival
(P2). Batches and waiting items are bounded in number and bytes; beyond the bound a call fails with
`Overloaded` at once. Used for the commands of the inbox, webhooks, and requests in the client.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from turnstile.common.domain.errors import Overloaded, StatementTimeout

WAITING_MAX: Final = 10_000
"""Upper bound on waiting items, the maximum concurrency of a worker; reaching it means the server is down."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of the items in one statement, unless a single item is larger."""
_STEP_SECONDS: Final = 0.02
"""How long one caller may occupy the event loop."""

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
        """`size_bytes` returns the size of an item; without it bytes are not bounded."""
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
        """Handle one item in the next batch; raises what the batch raised, or Overloaded."""
        size_bytes = self._size_bytes(item)
        self._require_room(1, size_bytes)
        return await self._add(item, size_bytes)

    async def submit_all(self, items: Sequence[Item]) -> list[Result]:
        """Handle items in order, not necessarily in one batch; raises what one of their batches raised.

        Raises Overloaded, without handling any of them, while too many wait.
        """
        sizes_bytes = [self._size_bytes(item) for item in items]
        self._require_room(len(items), sum(sizes_bytes))
        return await asyncio.gather(*map(self._add, items, sizes_bytes))

    def _require_room(self, count: int, size_bytes: int) -> None:
        if len(self._pending) + count > self._waiting_max:
            raise Overloaded(f"{len(self._pending)} items are waiting; the maximum is {self._waiting_max}")
        bytes_max = self._waiting_bytes_max
        if bytes_max is not None and self._pending_bytes and self._pending_bytes + size_bytes > bytes_max:
            raise Overloaded(f"{self._pending_bytes} bytes are waiting; the maximum is {bytes_max}")

    def _add(self, item: Item, size_bytes: int) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future, size_bytes))
        self._pending_bytes += size_bytes
        self._arrived.set()
        return future

    async def run(self) -> NoReturn:
        """Handle batches until cancelled; then waiting items fail with CancelledError."""
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
        # An item whose caller gave up must not be handled later.
        taken = [(item, future) for item, future in self._take() if not future.done()]
        if not taken:
            return
        try:
            results = await self._handle([item for item, _ in taken])
        except asyncio.CancelledError:
            for _, future in taken:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (passed on)
            # Every error is the callers', not this loop's.
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
        """Take the next batch: all items that have gathered, at least one, up to both bounds."""
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


async def in_steps(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield items one by one, and let other tasks run at short intervals."""
    began_at = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began_at > _STEP_SECONDS:
            await asyncio.sleep(0)
            began_at = time.perf_counter()
