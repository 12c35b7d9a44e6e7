"""Neighbours that ask for much: huge requests, a full line, many keys, ends that nobody takes.

In: a disturbance. Out: see `Neighbour`. All that they ask for is legal, or refused by a documented rule.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from aio_pika.abc import AbstractIncomingMessage

from tests.proof.chaos.neighbours.neighbour import Neighbour, Sending

_LARGE_BYTES: Final = 250_000
_OVERSIZED_BYTES: Final = 700_000
_RECEIVERS: Final = 100


class HugeRequests(Neighbour):
    """Asks for an action of its own with parameters as large as they may be, or larger."""

    _PER_SECOND: Final = {"large": 60.0, "dense": 3.0, "oversized": 15.0}
    """Their cost to whoever reads them differs by as much."""

    async def disturb(self) -> None:
        """Send the same body again and again."""
        body = self._body()
        rate = self._PER_SECOND[self.variant]
        async with self.channel() as channel:
            await self.send(channel, lambda _: self.request(body), per_second=rate, did="requests")

    def _body(self) -> bytes:
        match self.variant:
            case "dense":
                content = b"[" + b",".join([b"{}"] * (_LARGE_BYTES // 3)) + b"]"
            case "oversized":
                content = b'"' + b"x" * _OVERSIZED_BYTES + b'"'
            case _:
                content = b'"' + b"x" * _LARGE_BYTES + b'"'
        ttl = self.body("")["ttl"]
        return b'{"action_ref": "neighbour.huge", "ttl": %f, "parameters": {"content": %b}}' % (ttl, content)


class FullLine(Neighbour):
    """Submits to a line that takes ten, far more than it takes; every other request wants an answer."""

    async def disturb(self) -> None:
        """Submit, and throw the answers away."""
        async with self.channel() as channel:
            answers = await channel.declare_queue(exclusive=True)
            await answers.consume(self._answered, no_ack=True)

            def make(number: int) -> Sending:
                body = self.body("neighbour.full", parameters={"seconds": 0.3})
                return self.request(body, reply_to=answers.name if number % 2 else None)

            await self.send(channel, make, per_second=60, did="requests")

    async def _answered(self, _: AbstractIncomingMessage) -> None:
        self.did["answers"] += 1


class ManyKeys(Neighbour):
    """Uses a new concurrency key for each request, and none of them twice."""

    async def disturb(self) -> None:
        """Ask for one short run with each."""

        def make(number: int) -> Sending:
            return self.request(self.body("neighbour.keyed", parameters={"key": f"{self.number} {number}"}))

        async with self.channel() as channel:
            await self.send(channel, make, per_second=100, did="keys")


class StuckReceivers(Neighbour):
    """Wants its ends at receivers, each an origin of its own, that take a connection and never answer."""

    async def disturb(self) -> None:
        """Listen, then ask for runs whose ends go there."""
        with _silent_receivers(self.number) as urls:

            def make(number: int) -> Sending:
                return self.request(self.body("neighbour.told", callback_url=urls[number % len(urls)]))

            async with self.channel() as channel:
                await self.send(channel, make, per_second=25, did="requests")


@contextmanager
def _silent_receivers(number: int) -> Iterator[list[str]]:
    with ExitStack() as open_sockets:
        urls = []
        for host in range(_RECEIVERS):
            listener = open_sockets.enter_context(socket.socket())
            # The kernel takes the connection and the request, and nobody reads them.
            listener.bind((f"127.9.{number % 250}.{host + 1}", 0))
            listener.listen(64)
            address, port = listener.getsockname()
            urls.append(f"http://{address}:{port}/")
        yield urls
