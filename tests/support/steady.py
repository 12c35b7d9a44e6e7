"""A client that submits in order while servers and services around it fail, and what must hold at the end.

Half of the requests are for `record` (one at a time), half for `record.seven`. Each has a message id of its
own and is published until the broker has confirmed it, as a careful client would.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.history import History, most_running_at_once, physical
from tests.support.traffic import publishing, request, until
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_AT_ONCE: Final = 2
_PAUSE_SECONDS: Final = 0.1
_LIMITS: Final = {"record": 1, "record.seven": 7}
_SETTLED: Final = """
SELECT sum(q.total_completed) FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = ANY ($1)
"""


@dataclass(kw_only=True)
class Steady:
    """The client: what it submitted, and what it can see of what became of it."""

    folder: Path
    publisher: Publisher
    pause_seconds: float = _PAUSE_SECONDS
    confirmed: int = 0
    """Requests confirmed for each of the two actions."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _submitting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def started(self) -> int:
        """How often anything was started, by the actions' own records."""
        return sum(text.read_text().count('"start"') for ref in _LIMITS if (text := self._file(ref)).exists())

    async def goes_on(self, after: str, *, deadline_seconds: float = 60.0) -> None:
        """Wait until more of what is submitted from now on has been started."""
        wanted = 2 * self.confirmed + 4

        async def more_started() -> bool:
            return self.started >= wanted

        await until(more_started, f"work goes on after {after}", deadline_seconds=deadline_seconds)

    async def submits(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = self.confirmed + count

        async def confirmed() -> bool:
            return self.confirmed >= wanted

        await until(confirmed, f"{count} more requests are confirmed")

    async def hurries(self, count: int) -> None:
        """Have so many more confirmed as fast as it goes, so that lines form."""
        self.pause_seconds = 0
        await self.submits(count)
        self.pause_seconds = _PAUSE_SECONDS

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[int]:
        """Submit nothing for the length of the block; lends how many requests were submitted by then."""
        async with self._submitting:
            yield 2 * self.confirmed

    async def run(self) -> None:
        """Submit until stopped."""
        while not self.stopped.is_set():
            async with self._submitting:
                numbers = range(self.confirmed, self.confirmed + _AT_ONCE)
                await _confirmed(self.publisher, [self._request(ref, n) for n in numbers for ref in _LIMITS])
                self.confirmed += _AT_ONCE
            await asyncio.sleep(self.pause_seconds)

    async def all_ran_once_in_order(self, history: History) -> None:
        """Wait for the last end; then all was granted in order, ran once, and never too much at once."""

        async def all_settled() -> bool:
            return bool(await history.value(_SETTLED, list(_LIMITS)) == 2 * self.confirmed)

        await until(all_settled, f"{2 * self.confirmed} ends", deadline_seconds=90)
        for ref, limit in _LIMITS.items():
            lines = physical(self._file(ref))
            started = [line.number for line in lines if line.event == "start"]
            granted = await history.grant_order(ref)
            assert granted == sorted(granted)
            assert sorted(started) == list(range(self.confirmed)), f"{ref} did not run each request once"
            assert most_running_at_once(lines) <= limit
            assert await history.most_at_once(ref) <= limit
            if limit == 1:
                assert started == sorted(started)

    def _request(self, ref: str, number: int) -> Outgoing:
        return request({"action_ref": ref, "parameters": {"file": str(self._file(ref)), "number": number}})

    def _file(self, ref: str) -> Path:
        return self.folder / f"{ref}.jsonl"


@asynccontextmanager
async def steady(amqp_url: str, folder: Path) -> AsyncIterator[Steady]:
    """Submit for the length of the block; at its end all that was submitted is confirmed."""
    async with publishing(amqp_url) as publisher:
        client = Steady(folder=folder, publisher=publisher)
        task = asyncio.create_task(client.run(), name="steady-client")
        try:
            yield client
            client.stopped.set()
            await asyncio.wait_for(task, 60)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _confirmed(publisher: Publisher, messages: list[Outgoing]) -> None:
    """Publish until all are confirmed; a repeated one keeps its message id."""
    pending = messages
    while pending:
        try:
            outcomes = await publisher.publish(pending)
        except BrokerUnavailable:
            continue
        pending = [m for m, o in zip(pending, outcomes, strict=True) if o is not Publication.CONFIRMED]
        if pending:
            await asyncio.sleep(0.1)
