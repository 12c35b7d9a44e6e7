"""A client that submits in order while servers and services fail, and the checks of its requests.

Half of the requests are for `record` (one at a time), half for `record.seven`. Each has a message id of its
own and is published until the broker has confirmed it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.history import History, peak_runs, runs_in, started_in
from tests.support.traffic import publishing, request, until
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_AT_ONCE: Final = 2
_PAUSE_SECONDS: Final = 0.1
_LIMITS: Final = {"record": 1, "record.seven": 7}
_ENDED: Final = """
SELECT count(*) = $2 FROM ledger.execution e WHERE e.action_ref = ANY ($1) AND e.completed_at IS NOT NULL
"""


@dataclass(kw_only=True)
class SteadyClient:
    """Submits all the time; counts confirmed requests and started runs."""

    folder: Path
    publisher: Publisher
    confirmed: int = 0
    """Requests confirmed for each of the two actions."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _submitting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def started(self) -> int:
        """How many runs were started, by the actions' own lines."""
        return sum(len(started_in(self._file(ref))) for ref in _LIMITS)

    async def continues(self, after: str) -> None:
        """Wait until requests that are submitted from now on have been started."""
        wanted = 2 * self.confirmed + 4
        await until(lambda: self.started >= wanted, f"work continues after {after}")

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[int]:
        """Submit nothing for the length of the block; yields the number of requests so far."""
        async with self._submitting:
            yield 2 * self.confirmed

    async def run(self) -> None:
        """Submit until stopped."""
        while not self.stopped.is_set():
            async with self._submitting:
                numbers = range(self.confirmed, self.confirmed + _AT_ONCE)
                await _confirmed(self.publisher, [self._request(ref, n) for n in numbers for ref in _LIMITS])
                self.confirmed += _AT_ONCE
            await asyncio.sleep(_PAUSE_SECONDS)

    async def all_ran_once_in_order(self, history: History) -> None:
        """Wait until all have ended: granted in order, run once, and never above the limit."""
        await history.until(_ENDED, list(_LIMITS), 2 * self.confirmed, deadline_seconds=90)
        for ref, limit in _LIMITS.items():
            lines, started = runs_in(self._file(ref)), started_in(self._file(ref))
            granted = await history.grant_order(ref)
            assert granted == sorted(granted)
            assert sorted(started) == list(range(self.confirmed)), f"{ref} did not run each request once"
            assert peak_runs(lines) <= limit
            assert await history.peak_attempts(ref) <= limit
            if limit == 1:
                assert started == sorted(started)

    def _request(self, ref: str, number: int) -> Outgoing:
        return request({"action_ref": ref, "parameters": {"file": str(self._file(ref)), "number": number}})

    def _file(self, ref: str) -> Path:
        return self.folder / f"{ref}.jsonl"


@asynccontextmanager
async def steady(amqp_url: str, folder: Path) -> AsyncIterator[SteadyClient]:
    """Submit for the length of the block; at its end all that was submitted is confirmed."""
    async with publishing(amqp_url) as publisher:
        client = SteadyClient(folder=folder, publisher=publisher)
        task = asyncio.create_task(client.run(), name="steady-client")
        try:
            yield client
            client.stopped.set()
            await asyncio.wait_for(task, 60)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _confirmed(publisher: Publisher, messages: list[Outgoing]) -> None:
    """Publish until all are confirmed; a repetition keeps its message id."""
    pending = messages
    while pending:
        try:
            outcomes = await publisher.publish(pending)
        except BrokerUnavailable:
            continue
        pending = [m for m, o in zip(pending, outcomes, strict=True) if o is not Publication.CONFIRMED]
        if pending:
            await asyncio.sleep(0.1)
