"""`GET /executions/{id}?wait=30s`: waits until an execution has ended, without a reading for each that waits.

In: the id of an execution. Out: nothing; the caller reads the execution. One statement reads the statuses of
all executions that are waited for in this process, again and again while there are any. It reads rows, so a
wait does not notice that the leader changes, and goes on while the database does not answer. The pauses grow
with the duration of a reading, up to a second, so that readings take a tenth of the time.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Final, Literal

from starlette.types import Receive

from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import is_terminal
from turnstile.executor.history.executions import Executions

WAITS_MAX: Final = 1000
_PAUSE_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 1.0
_SHARE: Final = 10.0


class Ends:
    """The waits of one executor process. Its task runs while there are any."""

    def __init__(self, executions: Executions, stopping: asyncio.Event) -> None:
        """All waits end once `stopping` is set."""
        self._executions, self._stopping = executions, stopping
        self._waits: defaultdict[ExecutionId, set[asyncio.Future[None]]] = defaultdict(set)
        self._count = 0
        self._reading: asyncio.Task[None] | None = None
        self.readings = 0
        """Number of readings."""

    async def wait(self, execution_id: ExecutionId, seconds: float, receive: Receive) -> None:
        """Return once it has ended, the client has left, or time is over. Raises Overloaded."""
        if self._count >= WAITS_MAX:
            raise Overloaded(
                f"wait: {WAITS_MAX} requests wait already in this executor; repeat it later, or without wait"
            )
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(until_gone(receive), name="client gone")
        stops = asyncio.create_task(self._stopping.wait(), name="service stops")
        first: set[asyncio.Future[None] | asyncio.Future[Literal[True]]] = {ended, gone, stops}
        self._count += 1
        self._waits[execution_id].add(ended)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_while_waiting(), name="ends")
        try:
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._count -= 1
            self._waits[execution_id].discard(ended)
            if not self._waits[execution_id]:
                del self._waits[execution_id]
            for each in first:
                each.cancel()

    async def _read_while_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waits:
            began_at = loop.time()
            with suppress(Unavailable):
                await self._read()
            pause_seconds = max(_PAUSE_SECONDS, _SHARE * (loop.time() - began_at))
            await asyncio.sleep(min(pause_seconds, _PAUSE_MAX_SECONDS))

    async def _read(self) -> None:
        self.readings += 1
        for found in await self._executions.named([*self._waits]):
            if is_terminal(found.status):
                for ended in self._waits.get(found.id, ()):
                    if not ended.done():
                        ended.set_result(None)


async def until_gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
