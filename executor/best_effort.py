"""Publishes to foreign addresses, a bounded number of times, without delaying other messages (P9).

In: replies, dead letters, and events that a listener's queue refused. Out: each message is confirmed, or
dropped with a reason, which `Undelivered` counts and logs. A separate connection carries them, so an address
that makes the broker close the connection, or a queue that never confirms, affects nothing else. A message
that was alone on the connection when it broke, twice, is dropped. Waiting messages are bounded in number,
bytes and time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from turnstile.common.broker.errors import BrokerUnavailable, NotSent
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTION_ACCEPTED,
    EXECUTION_CANCEL_ACCEPTED,
    EXECUTION_COMPLETED,
    EXECUTION_REJECTED,
    EXECUTION_STATUS_CHANGED,
    EXECUTIONS,
)
from turnstile.common.telemetry.logs import Episodes

logger = logging.getLogger(__name__)

_TRIES_MAX: Final = 3
_PAUSES_SECONDS: Final = (0.2, 1.0)
"""Before the second try, and before each later one."""
_LOSSES_MAX: Final = 2
_BATCH_MAX: Final = 200
_WAITING_MAX: Final = 5000
_WAITING_BYTES_MAX: Final = 64 << 20
_LIFETIME_SECONDS: Final = 30.0
_REFUSAL_REMEMBERED_SECONDS: Final = 10.0
"""For this long after a refusal an address gets only one try."""
_LOSS_REMEMBERED_SECONDS: Final = 60.0
"""For this long after it broke the connection nothing is published to an address."""
_ADDRESSES_REMEMBERED_MAX: Final = 10_000
_LOGGED_BYTES_MAX: Final = 16 * 1024

_DIRECT_REPLY_PREFIX: Final = "amq.rabbitmq.reply-to."
_DIRECT_REPLY: Final = re.compile(r"amq\.rabbitmq\.reply-to\.([A-Za-z0-9+/]+={0,2})\..{1,120}")
"""RabbitMQ's direct reply-to: a process of the broker in base64, and a key."""
_OUR_QUEUES: Final = re.compile(r"(executor|worker|executions)(\..*)?", re.DOTALL)

_REPLIES: Final = frozenset({EXECUTION_ACCEPTED, EXECUTION_REJECTED, EXECUTION_CANCEL_ACCEPTED})
_EVENTS: Final = frozenset({EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED})

Dropped = Callable[[Outgoing, str], None]

Kind = Literal["reply", "event", "dead_letter", "own"]
KINDS: Final[tuple[Kind, ...]] = ("reply", "event", "dead_letter", "own")
"""`event`: the copy for listeners; `own`: for a queue of the protocol, republished by the watchdog."""


class RecentAddresses:
    """Addresses added within the last `seconds`; the number is bounded, the oldest is removed first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[tuple[str, str], float] = {}

    def __contains__(self, message: Outgoing) -> bool:
        if not self._until:
            return False
        return self._until.get(message.address, 0.0) > asyncio.get_running_loop().time()

    def add(self, message: Outgoing) -> None:
        """Remember the address of a message."""
        self._until[message.address] = asyncio.get_running_loop().time() + self._seconds
        if len(self._until) > _ADDRESSES_REMEMBERED_MAX:
            del self._until[next(iter(self._until))]

    def discard(self, message: Outgoing) -> None:
        """Forget the address of a message."""
        self._until.pop(message.address, None)


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
    """How often the connection broke while only this message was unconfirmed."""
    suspect: bool = False
    """It was unconfirmed when the connection broke: it is sent alone."""


class BestEffortPublisher:
    """One connection for foreign addresses; it connects when the first message is posted."""

    def __init__(self, publisher: Publisher, *, on_dropped: Dropped) -> None:
        """Use a `publisher` of its own; call `on_dropped` with each dropped message and why."""
        self._publisher = publisher
        self._on_dropped = on_dropped
        self._due: list[tuple[float, int, _Parcel]] = []
        self._order = itertools.count()
        self._waiting = 0
        self._waiting_bytes = 0
        self._refused = RecentAddresses(_REFUSAL_REMEMBERED_SECONDS)
        self._broken = RecentAddresses(_LOSS_REMEMBERED_SECONDS)
        self._arrived = asyncio.Event()

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        await self._arrived.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="best-effort-connection")
            while True:
                await self._wait_until_due()
                await self._publish_next()
        raise AssertionError("unreachable: only a cancellation ends this")

    def post(
        self, messages: Iterable[Outgoing], *, tries_max: int = _TRIES_MAX
    ) -> list[asyncio.Future[bool]]:
        """Queue messages for publishing; each future is true if the broker confirmed it. Never blocks."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        parcels = [
            _Parcel(
                message=message,
                tries_max=tries_max,
                expires_at=now + _LIFETIME_SECONDS,
                done=loop.create_future(),
            )
            for message in messages
        ]
        for parcel in parcels:
            reason = self._reason_to_drop(parcel.message)
            if reason is not None:
                self._on_dropped(parcel.message, reason)
                parcel.done.set_result(False)
                continue
            self._waiting += 1
            self._waiting_bytes += len(parcel.message.body)
            self._schedule(parcel, now)
        return [parcel.done for parcel in parcels]

    def _reason_to_drop(self, message: Outgoing) -> str | None:
        if not message.exchange and (reason := invalid_address(message.routing_key)):
            return f"invalid reply_to: {reason}"
        if self._waiting >= _WAITING_MAX or self._waiting_bytes + len(message.body) > _WAITING_BYTES_MAX:
            return "too many messages wait to be published"
        return None

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
            if parcel.message in self._broken:
                self._drop(parcel, "this address recently broke the connection")
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
            self._repeat(parcels)
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
        parcel.tries += 1
        if parcel.tries >= parcel.tries_max or parcel.message in self._refused:
            self._refused.add(parcel.message)
            self._drop(parcel, f"{outcome.value} by the broker, {parcel.tries} times")
        else:
            pause_seconds = _PAUSES_SECONDS[min(parcel.tries, len(_PAUSES_SECONDS)) - 1]
            self._schedule(parcel, asyncio.get_running_loop().time() + pause_seconds)

    def _after_loss(self, parcels: Sequence[_Parcel], error: str) -> None:
        """Send the possible causes one by one; drop a message that broke the connection twice."""
        if len(parcels) > 1:
            # Only an address of direct reply-to is interpreted by the broker.
            direct = [p for p in parcels if p.message.routing_key.startswith(_DIRECT_REPLY_PREFIX)]
            for parcel in direct or parcels:
                parcel.suspect = True
        else:
            parcels[0].losses += 1
            if parcels[0].losses >= _LOSSES_MAX:
                self._broken.add(parcels[0].message)
                self._drop(parcels[0], f"the connection broke each time it was published: {error}")
                return
        self._repeat(parcels)

    def _after_unsendable(self, parcels: Sequence[_Parcel], error: str) -> None:
        if len(parcels) == 1:
            self._drop(parcels[0], f"AMQP cannot carry it: {error}")
            return
        for parcel in parcels:
            parcel.suspect = True
        self._repeat(parcels)

    def _repeat(self, parcels: Sequence[_Parcel]) -> None:
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
    """Return why replies may not go to this queue, or None where they may."""
    if _OUR_QUEUES.fullmatch(queue):
        return "it is a queue of Turnstile itself"
    if queue.startswith("amq.") and not queue.startswith("amq.gen-"):
        direct = _DIRECT_REPLY.fullmatch(queue)
        # An Erlang term begins with 131; for anything else the broker closes the connection.
        if direct is None or _decoded(direct[1])[:1] != b"\x83":
            return "it is not a queue of yours, nor an address that the broker made for amq.rabbitmq.reply-to"
    return None


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""


class Undelivered:
    """Counts and logs messages that were given up: a dead letter in full, others once per address.

    The log names the queue, or the exchange and key where a listener's queue refused (the broker does not
    say which one it was).
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        """`count` is called with the kind of each message."""
        self._count = count
        self._episodes = Episodes(logger, "messages_undelivered")

    def __call__(self, message: Outgoing, reason: str) -> None:
        """Count and log one message, and why it was given up."""
        kind = _kind_of(message)
        self._count(kind)
        if kind == "dead_letter":
            _log_dead_letter(message, reason)
            return
        address = {"exchange": message.exchange, "routing_key": message.routing_key}
        if not message.exchange:
            address = {"queue": message.routing_key}
        self._episodes.failed(
            f"{kind} {message.exchange} {message.routing_key}",
            **address,
            kind=kind,
            type=message.type,
            correlation_id=message.correlation_id,
            reason=reason,
        )


def _kind_of(message: Outgoing) -> Kind:
    if message.exchange == DEAD_LETTER_EXCHANGE:
        return "dead_letter"
    if message.type in _REPLIES:
        return "reply"
    is_event = message.type in _EVENTS and message.exchange == EXECUTIONS
    return "event" if is_event or message.direct_address is not None else "own"


def _log_dead_letter(message: Outgoing, reason: str) -> None:
    body = message.body[:_LOGGED_BYTES_MAX]
    logger.error(
        "dead_letter_undelivered",
        extra={
            "reason": reason,
            "message_id": message.message_id,
            "routing_key": message.routing_key,
            "headers": dict(message.headers or {}),
            "body": body.decode(errors="backslashreplace"),
            "body_bytes": len(message.body),
        },
    )
