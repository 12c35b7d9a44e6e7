"""Publishes to addresses of strangers, a bounded number of times, without delaying other messages (P9).

In: replies, dead letters, and events that a listener's queue refused. Out: each is confirmed, or dropped
with a reason, which the owner logs and counts. All of it goes over a connection of its own, so that an
address that makes the broker end the connection, or a queue that never confirms, costs only what is here. A
message that was alone on the connection when it broke, twice, is dropped for that. What waits is bounded in
number, bytes and time. Next: `publisher`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from turnstile.common.broker.connection import BrokerUnavailable, NotSent
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_TRIES_MAX: Final = 3
_PAUSES_SECONDS: Final = (0.2, 1.0)
"""Before the second try, and before each later one."""
_LOSSES_MAX: Final = 2
_BATCH_MAX: Final = 200
_WAITING_MAX: Final = 5000
_WAITING_BYTES_MAX: Final = 64 << 20
_LIFETIME_SECONDS: Final = 30.0
_REFUSAL_REMEMBERED_SECONDS: Final = 10.0
"""After a refusal one try is enough to see that this address still refuses."""
_LOSS_REMEMBERED_SECONDS: Final = 60.0
"""After it broke the connection nothing is published to an address."""
_ADDRESSES_REMEMBERED_MAX: Final = 10_000

_DIRECT_REPLY_PREFIX: Final = "amq.rabbitmq.reply-to."
_DIRECT_REPLY: Final = re.compile(r"amq\.rabbitmq\.reply-to\.([A-Za-z0-9+/]+={0,2})\..{1,120}")
"""RabbitMQ's direct reply-to: a process of the broker in base64, and a key."""
_OUR_QUEUES: Final = re.compile(r"(executor|worker|executions)(\..*)?", re.DOTALL)

Dropped = Callable[[Outgoing, str], None]


@dataclass(slots=True, kw_only=True, eq=False)
class _Parcel:
    """One message that is not confirmed yet."""

    message: Outgoing
    tries_max: int
    expires_at: float
    done: asyncio.Future[bool]
    """Whether the broker confirmed it."""
    tries: int = 0
    losses: int = 0
    """How often the connection broke while this message alone was unconfirmed."""
    suspect: bool = False
    """It was unconfirmed when the connection broke: it is sent alone."""


class Courier:
    """One connection to strangers. `run` keeps it going; it connects once there is something to publish."""

    def __init__(self, publisher: Publisher, *, on_dropped: Dropped) -> None:
        """Use a publisher of its own; `on_dropped` is given each message that was given up, and why."""
        self._publisher = publisher
        self._on_dropped = on_dropped
        self._due: list[tuple[float, int, _Parcel]] = []
        self._order = itertools.count()
        self._waiting = 0
        self._waiting_bytes = 0
        self._refused_until: dict[tuple[str, str], float] = {}
        self._broken_until: dict[tuple[str, str], float] = {}
        self._arrived = asyncio.Event()

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        await self._arrived.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="courier-connection")
            while True:
                await self._wait_until_due()
                await self._publish_next()
        raise AssertionError("the courier ends by cancellation only")

    def post(
        self, messages: Iterable[Outgoing], *, tries_max: int = _TRIES_MAX
    ) -> list[asyncio.Future[bool]]:
        """Have messages published; each future says whether the broker confirmed it. Never blocks."""
        loop = asyncio.get_running_loop()
        parcels = [
            _Parcel(
                message=message,
                tries_max=tries_max,
                expires_at=loop.time() + _LIFETIME_SECONDS,
                done=loop.create_future(),
            )
            for message in messages
        ]
        for parcel in parcels:
            size_bytes = len(parcel.message.body)
            if not parcel.message.exchange and (reason := invalid_address(parcel.message.routing_key)):
                self._on_dropped(parcel.message, f"invalid reply_to: {reason}")
                parcel.done.set_result(False)
                continue
            if self._waiting >= _WAITING_MAX or self._waiting_bytes + size_bytes > _WAITING_BYTES_MAX:
                self._on_dropped(parcel.message, "too many messages wait to be published")
                parcel.done.set_result(False)
                continue
            self._waiting += 1
            self._waiting_bytes += size_bytes
            self._schedule(parcel, loop.time())
        return [parcel.done for parcel in parcels]

    def _schedule(self, parcel: _Parcel, due_at: float) -> None:
        heapq.heappush(self._due, (due_at, next(self._order), parcel))
        self._arrived.set()

    async def _wait_until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._due or self._due[0][0] > loop.time():
            self._arrived.clear()
            delay_seconds = self._due[0][0] - loop.time() if self._due else None
            try:
                await asyncio.wait_for(self._arrived.wait(), delay_seconds)
            except TimeoutError:
                return

    def _take_next(self) -> list[_Parcel]:
        """Return what is due, in order; a suspect comes alone."""
        now = asyncio.get_running_loop().time()
        taken: list[_Parcel] = []
        while self._due and self._due[0][0] <= now and len(taken) < _BATCH_MAX:
            parcel = self._due[0][2]
            if parcel.suspect and taken:
                break
            heapq.heappop(self._due)
            if parcel.expires_at <= now:
                self._drop(parcel, "not published in time")
                continue
            if self._broken_until and self._broken_until.get(_address(parcel.message), 0.0) > now:
                self._drop(parcel, "this address broke the connection lately")
                continue
            taken.append(parcel)
            if parcel.suspect:
                break
        return taken

    async def _publish_next(self) -> None:
        parcels = self._take_next()
        if not parcels:
            return
        try:
            outcomes = await self._publisher.publish([parcel.message for parcel in parcels])
        except NotSent:
            self._again(parcels)
        except BrokerUnavailable as error:
            self._after_loss(parcels, str(error))
        except ValueError as error:
            self._after_unsendable(parcels, str(error))
        else:
            if Publication.RETURNED in outcomes:
                with suppress(BrokerUnavailable):
                    await self._publisher.restore()
            for parcel, outcome in zip(parcels, outcomes, strict=True):
                self._after_answer(parcel, outcome)

    def _after_answer(self, parcel: _Parcel, outcome: Publication) -> None:
        if outcome is Publication.CONFIRMED:
            self._finish(parcel, confirmed=True)
            return
        now, address = asyncio.get_running_loop().time(), _address(parcel.message)
        parcel.tries += 1
        if parcel.tries >= parcel.tries_max or self._refused_until.get(address, 0.0) > now:
            _remember(self._refused_until, address, now + _REFUSAL_REMEMBERED_SECONDS)
            self._drop(parcel, f"{outcome.value} by the broker, {parcel.tries} times")
        else:
            self._schedule(parcel, now + _PAUSES_SECONDS[min(parcel.tries, len(_PAUSES_SECONDS)) - 1])

    def _after_loss(self, parcels: Sequence[_Parcel], error: str) -> None:
        """Send alone what may have broken the connection; drop what has done so twice."""
        if len(parcels) > 1:
            # The address of a process of the broker is the one that the broker has to interpret.
            direct = [p for p in parcels if p.message.routing_key.startswith(_DIRECT_REPLY_PREFIX)]
            for parcel in direct or parcels:
                parcel.suspect = True
        else:
            parcels[0].losses += 1
            if parcels[0].losses >= _LOSSES_MAX:
                until = asyncio.get_running_loop().time() + _LOSS_REMEMBERED_SECONDS
                _remember(self._broken_until, _address(parcels[0].message), until)
                self._drop(parcels[0], f"the connection broke each time it was published: {error}")
                return
        self._again(parcels)

    def _after_unsendable(self, parcels: Sequence[_Parcel], error: str) -> None:
        if len(parcels) == 1:
            self._drop(parcels[0], f"AMQP cannot carry it: {error}")
            return
        for parcel in parcels:
            parcel.suspect = True
        self._again(parcels)

    def _again(self, parcels: Sequence[_Parcel]) -> None:
        now = asyncio.get_running_loop().time()
        for parcel in sorted(parcels, key=lambda each: each.suspect):
            self._schedule(parcel, now)

    def _drop(self, parcel: _Parcel, reason: str) -> None:
        self._on_dropped(parcel.message, reason)
        self._finish(parcel, confirmed=False)

    def _finish(self, parcel: _Parcel, *, confirmed: bool) -> None:
        self._waiting -= 1
        self._waiting_bytes -= len(parcel.message.body)
        if not parcel.done.done():
            parcel.done.set_result(confirmed)


def invalid_address(queue: str) -> str | None:
    """Return why no stranger can have this queue, or None where one may."""
    if _OUR_QUEUES.fullmatch(queue):
        return "it is a queue of Turnstile itself"
    if queue.startswith("amq.") and not queue.startswith("amq.gen-"):
        direct = _DIRECT_REPLY.fullmatch(queue)
        # An Erlang term begins with 131; over anything else the broker ends the connection.
        if direct is None or _decoded(direct[1])[:1] != b"\x83":
            return "it is not a queue of yours, nor an address that the broker made for amq.rabbitmq.reply-to"
    return None


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""


def _address(message: Outgoing) -> tuple[str, str]:
    return message.exchange, message.routing_key


def _remember(times: dict[tuple[str, str], float], address: tuple[str, str], until: float) -> None:
    times[address] = until
    if len(times) > _ADDRESSES_REMEMBERED_MAX:
        del times[next(iter(times))]
