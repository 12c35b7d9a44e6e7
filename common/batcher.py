"""Group commit: many callers, one statement at a time over all that has gathered meanwhile.

In: items from any number of tasks. Out: each caller's own results. While one batch is with the server the
next gathers; a lone item is a batch of one and never waits for company. Items keep the order in which they
came (P2). What waits is bounded: beyond that a caller is refused with `Overloaded`, at once. Used for HTTP
admissions in the executor and for claims and finishes in the worker.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

from common.domain.errors import Overloaded

WAITING_MAX: Final = 10_000
"""As many as one worker may run at once; whoever meets it meets a server that is out."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Gathers items into batches for `handle`, which returns one result per item, in order."""

    def __init__(
        self,
        handle: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        items_max: int = 500,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._handle = handle
        self._items_max = items_max
        self._waiting_max = waiting_max
        self._pending: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._arrived = asyncio.Event()

    async def submit(self, item: Item) -> Result:
        """Have one item handled in the next batch; raises what the batch raised."""
        return (await self.submit_all([item]))[0]

    async def submit_all(self, items: Sequence[Item]) -> list[Result]:
        """Have items handled in order, not necessarily in one batch; raises what a batch of theirs raised.

        Raises Overloaded, and has none of them handled, while too many wait.
        """
        if len(self._pending) + len(items) > self._waiting_max:
            raise Overloaded(f"{len(self._pending)} wait already, at most {self._waiting_max} may")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        self._pending.extend(zip(items, futures, strict=True))
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
            for _, future in self._pending:
                future.cancel()

    async def _handle_next(self) -> None:
        taken = [self._pending.popleft() for _ in range(min(self._items_max, len(self._pending)))]
        # Whoever gave up waiting must not find later that it was done after all.
        taken = [(item, future) for item, future in taken if not future.done()]
        if not taken:
            return
        try:
            results = await self._handle([item for item, _ in taken])
        except asyncio.CancelledError:
            for _, future in taken:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  (whatever it was belongs to the callers, not to this loop)
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(taken, results, strict=True):
            if not future.done():
                future.set_result(result)


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
