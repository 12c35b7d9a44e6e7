"""One neighbour: its access to the system, and a count of what it did.

In: one `Disturbance` of the `Plan`. Out: connections, requests and messages for the function of its kind;
`did` counts its effects. A neighbour knows URLs and nothing else of the system.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

import aio_pika
import asyncpg
from aio_pika.abc import AbstractChannel

from tests.proof.chaos.neighbours.schedule import Disturbance, Shape, plan_disturbances

REQUEST_SECONDS: Final = 10.0
"""Longest time that a neighbour waits for a server."""
_BATCHES_PER_SECOND: Final = 4
_TTL_MARGIN_SECONDS: Final = 4.0
_POLL_SECONDS: Final = 0.05
_REQUESTED: Final = "execution.requested"

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Sending: TypeAlias = tuple[str, str, aio_pika.Message]
"""The exchange, the routing key and the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The URLs of the system."""

    seed: int
    amqp_url: str
    management_url: str
    vhost: str
    database_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The input of the neighbours' process."""

    shape: Shape
    began_at: datetime
    access: Access

    @property
    def disturbances(self) -> Sequence[Disturbance]:
        """The same in every process."""
        return plan_disturbances(self.access.seed, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A disturbance that happened."""

    disturbance: Disturbance
    began_at: datetime
    ended_at: datetime
    did: Mapping[str, int]
    failed: str | None
    """Why the neighbour itself failed."""

    def __str__(self) -> str:
        did = ", ".join(f"{count} {what}" for what, count in sorted(self.did.items()))
        return f"{self.disturbance}: {did or 'nothing'}"


class Neighbour:
    """What the function of a kind uses."""

    def __init__(self, access: Access, disturbance: Disturbance) -> None:
        self.access = access
        self.variant = disturbance.variant
        self.number = disturbance.number
        self.seconds = disturbance.lasting_seconds
        self.rng = random.Random(f"{access.seed} neighbour {disturbance.number}")
        self.did: Counter[str] = Counter()

    @asynccontextmanager
    async def channel(
        self, *, afterwards: Callable[[AbstractChannel], Awaitable[object]] | None = None
    ) -> AsyncIterator[AbstractChannel]:
        """Lend a channel without confirms, so that no refusal by another neighbour delays this one.

        `afterwards` gets another channel, to remove what would continue to disturb.
        """
        try:
            async with await aio_pika.connect(self.access.amqp_url, timeout=REQUEST_SECONDS) as connection:
                yield await connection.channel(publisher_confirms=False)
        finally:
            if afterwards is not None:
                async with asyncio.timeout(REQUEST_SECONDS), self.channel() as channel:
                    await afterwards(channel)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lend a database session, ended without a regular close.

        A session that waits for a lock of this one gets it at once. Waits while another neighbour has all
        connections.
        """
        while True:
            with suppress(asyncpg.TooManyConnectionsError):
                session = await asyncpg.connect(self.access.database_url, timeout=REQUEST_SECONDS)
                break
            await asyncio.sleep(_POLL_SECONDS)
        try:
            yield session
        finally:
            session.terminate()

    async def send(
        self, channel: AbstractChannel, make: Callable[[int], Sending], *, per_second: float, did: str
    ) -> None:
        """Publish what `make` returns for each number, at a steady rate in small batches, until cancelled."""
        loop, sent = asyncio.get_running_loop(), 0
        began = loop.time()
        while True:
            due = int((loop.time() - began + 1 / _BATCHES_PER_SECOND) * per_second)
            while sent < due:
                await self.publish(channel, make(sent))
                sent += 1
                self.did[did] += 1
            await asyncio.sleep(1 / _BATCHES_PER_SECOND)

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
        """Return a request, as a client sends it."""
        return "executions", _REQUESTED, self.message(body, **properties)

    def body(self, action_ref: str, **fields: Any) -> dict[str, Any]:
        """Return a request whose time to live ends soon after this neighbour."""
        return {"action_ref": action_ref, "ttl": self.seconds + _TTL_MARGIN_SECONDS, **fields}

    def message(
        self, body: Mapping[str, Any] | bytes, kind: str = _REQUESTED, **properties: Any
    ) -> aio_pika.Message:
        """Return a message with this body."""
        return aio_pika.Message(
            body if isinstance(body, bytes) else json.dumps(body).encode(),
            message_id=str(UUID(int=self.rng.getrandbits(128), version=4)),
            type=kind,
            **properties,
        )
