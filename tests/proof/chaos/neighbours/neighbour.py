"""What all neighbours have in common: the ways in, a beginning, an end, and a count of what was done.

In: one `Disturbance`. Out: the same from `start` to `stop`, bounded in time; `did` says what it came to. A
neighbour knows URLs and nothing else of the system, like any stranger.
"""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import aio_pika
import httpx
from aio_pika.abc import AbstractChannel

from tests.proof.chaos.neighbours.schedule import Disturbance

ASK_SECONDS: Final = 10.0
"""Longest answer of a server that a neighbour waits for."""
_BUNDLES_PER_SECOND: Final = 4
_TTL_MARGIN_SECONDS: Final = 4.0
_REQUESTED: Final = "execution.requested"

Sending = tuple[str, str, aio_pika.Message]
"""The exchange, the routing key and the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where strangers find the system."""

    seed: int
    amqp_url: str
    management_url: str
    vhost: str
    database_url: str
    http_urls: list[str]


class Neighbour(ABC):
    """Disturbs from `start` to `stop`."""

    def __init__(self, access: Access, disturbance: Disturbance) -> None:
        self.access = access
        self.variant = disturbance.variant
        self.number = disturbance.number
        self.seconds = disturbance.lasting_seconds
        self.rng = random.Random(f"{access.seed} neighbour {disturbance.number}")
        self.did: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self.disturb(), name=f"neighbour-{self.number}")

    async def stop(self) -> None:
        """End, and take back what would stay; raises what went wrong."""
        assert self._task is not None
        self._task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._task
        finally:
            async with asyncio.timeout(ASK_SECONDS):
                await self.take_back()

    @abstractmethod
    async def disturb(self) -> None:
        """Do it, until cancelled or done."""

    async def take_back(self) -> None:  # noqa: B027  most leave nothing behind
        """Remove what would go on disturbing."""

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        """Lend a channel without confirms, so that no refusal of another neighbour holds up this one."""
        async with await aio_pika.connect(self.access.amqp_url, timeout=ASK_SECONDS) as connection:
            yield await connection.channel(publisher_confirms=False)

    async def send(
        self, channel: AbstractChannel, make: Callable[[int], Sending], *, per_second: float, did: str
    ) -> None:
        """Publish what `make` returns for each number, at a steady rate in small bundles, until cancelled."""
        loop, sent = asyncio.get_running_loop(), 0
        began = loop.time()
        while True:
            due = int((loop.time() - began + 1 / _BUNDLES_PER_SECOND) * per_second)
            while sent < due:
                await self.publish(channel, make(sent))
                sent += 1
                self.did[did] += 1
            await asyncio.sleep(1 / _BUNDLES_PER_SECOND)

    async def publish(self, channel: AbstractChannel, sending: Sending) -> None:
        """Publish one message, unconfirmed."""
        exchange_name, routing_key, message = sending
        exchange = (
            await channel.get_exchange(exchange_name, ensure=False)
            if exchange_name
            else channel.default_exchange
        )
        await exchange.publish(message, routing_key, mandatory=False)

    def request(self, body: Mapping[str, Any] | bytes, **properties: Any) -> Sending:
        """Return a request, as any client would send it."""
        return "executions", _REQUESTED, self.message(body, **properties)

    def body(self, action_ref: str, **fields: Any) -> dict[str, Any]:
        """Return a request that has ended, whatever happens, soon after this neighbour has."""
        return {"action_ref": action_ref, "ttl": self.seconds + _TTL_MARGIN_SECONDS, **fields}

    def message(
        self, body: Mapping[str, Any] | bytes, kind: str = _REQUESTED, **properties: Any
    ) -> aio_pika.Message:
        """Wrap a body as any client would."""
        return aio_pika.Message(
            body if isinstance(body, bytes) else json.dumps(body).encode(),
            message_id=str(UUID(int=self.rng.getrandbits(128), version=4)),
            type=kind,
            **properties,
        )

    async def ask(self, method: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Ask one executor over HTTP; raises httpx.HTTPError."""
        async with httpx.AsyncClient(trust_env=False, timeout=ASK_SECONDS) as http:
            url = self.rng.choice(self.access.http_urls)
            return await http.request(method, f"{url}/api/v1{path}", json=body)
