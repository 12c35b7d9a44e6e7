"""Sends requests and receives the executor's replies, across any loss of the connection.

In: requests. Out: `Submitted` or `Rejected` for each, in order; a request rejected here is not sent. A
publish with an unknown outcome is repeated, and so is every request without a reply when the reply queue,
which is deleted with its connection, was declared again: the executor recognises the message id and replies
again without a second execution (P5). One batch is published at a time, so the order of calls is the arrival
order (P2).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from pydantic import ValidationError
from pydantic_core import from_json

from turnstile.client.errors import Rejected, Unavailable
from turnstile.client.requests import Request, answer_seconds, request_message
from turnstile.common.batcher import Batcher
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_ACCEPTED
from turnstile.common.domain.states import Status
from turnstile.common.invalid_values import explained
from turnstile.common.messages import ExecutionAccepted

logger = logging.getLogger(__name__)

CHUNK_MAX: Final = 500
"""Most requests that are sent at once."""
_CHUNKS_UNANSWERED_MAX: Final = 4
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0
_NOT_CONFIRMED: Final = {
    Publication.RETURNED: "no executor has declared its request queue on this broker yet",
    Publication.REFUSED: "the request queue refuses messages",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The request is stored, and will be executed (P5)."""

    execution_id: int
    """The arrival order: a smaller id was admitted earlier."""
    status: Status
    position: int | None
    """Position in its queue, from 1; None if it is not queued."""
    duplicate: bool
    """Its idempotency key was known: this is the execution admitted under that key before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    requests: list[Request]
    sent_or_rejected: list[_SentRequest | Rejected]

    def sent(self) -> list[_SentRequest]:
        return [each for each in self.sent_or_rejected if isinstance(each, _SentRequest)]


class Submissions:
    """Submits lists of requests in order, many at once, up to a bound."""

    def __init__(self, replies: Replies, *, timeout_seconds: float, parameters_bytes_max: int) -> None:
        self._replies = replies
        self._timeout_seconds = timeout_seconds
        self._parameters_bytes_max = parameters_bytes_max

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return a reply for each, in order; raises Unavailable if one is missing in time."""
        unanswered: deque[_Chunk] = deque()
        results: list[Submitted | Rejected] = []
        try:
            for chunk in chunks(requests):
                # Confirmed before the next chunk is sent: that keeps the order (P2).
                unanswered.append(await self._send(chunk))
                if len(unanswered) == _CHUNKS_UNANSWERED_MAX:
                    results += await self._results(unanswered.popleft())
            while unanswered:
                results += await self._results(unanswered.popleft())
        finally:
            for left in unanswered:
                self._replies.forget(left.sent())
        return results

    async def _send(self, requests: list[Request]) -> _Chunk:
        checked = [self._checked(request) for request in requests]
        messages = [each for each in checked if isinstance(each, Outgoing)]
        timeout_seconds = answer_seconds(requests, default=self._timeout_seconds)
        sent = iter(await self._replies.send(messages, timeout_seconds=timeout_seconds))
        return _Chunk(
            requests=requests,
            sent_or_rejected=[each if isinstance(each, Rejected) else next(sent) for each in checked],
        )

    async def _results(self, chunk: _Chunk) -> list[Submitted | Rejected]:
        replies = iter(await self._replies.receive(chunk.sent()))
        return [
            each if isinstance(each, Rejected) else _result(request, next(replies))
            for request, each in zip(chunk.requests, chunk.sent_or_rejected, strict=True)
        ]

    def _checked(self, request: Request) -> Outgoing | Rejected:
        try:
            return request_message(
                request, reply_to=self._replies.queue, parameters_bytes_max=self._parameters_bytes_max
            )
        except Rejected as rejected:
            return rejected


def _result(request: Request, reply: ExecutionAccepted | Rejected) -> Submitted | Rejected:
    if isinstance(reply, Rejected):
        return reply
    return Submitted(
        execution_id=reply.execution_id,
        status=reply.status,
        position=reply.position,
        # Without a key, a duplicate can only be our own repeat.
        duplicate=reply.duplicate and request.idempotency_key is not None,
    )


def chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Split requests, which are read as needed."""
    rest = iter(requests)
    while chunk := list(islice(rest, CHUNK_MAX)):
        yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentRequest:
    """A request that was sent, and its future reply."""

    message: Outgoing
    reply: asyncio.Future[ExecutionAccepted | Rejected]
    give_up_at: float
    """In the time of the event loop."""


class Replies:
    """The requests of one client that have no reply yet. `run` receives the replies."""

    def __init__(self, consumer: ConsumerConnection, sender: RequestSender, *, queue: str) -> None:
        self.queue = queue
        self._consumer = consumer
        self._sender = sender
        self._open: dict[str, _SentRequest] = {}
        self._declared = asyncio.Event()
        self._declared_again = asyncio.Event()

    async def run(self) -> NoReturn:
        """Receive replies until cancelled."""
        subscription = self._consumer.subscribe(self.queue, prefetch=CHUNK_MAX, declare=self._declare)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat_unanswered(), name="repeat-requests")
            while True:
                deliveries = await subscription.next_batch(CHUNK_MAX)
                for delivery in deliveries:
                    self._take(delivery)
                subscription.ack(deliveries)

    async def send(self, messages: Sequence[Outgoing], *, timeout_seconds: float) -> list[_SentRequest]:
        """Send requests; return once the broker confirmed them, or raise Unavailable after the timeout."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_seconds
        await self._until_declared(give_up_at)
        sent = [
            _SentRequest(message=each, reply=loop.create_future(), give_up_at=give_up_at) for each in messages
        ]
        self._open.update({each.message.message_id: each for each in sent})
        try:
            await self._sender.send(messages, give_up_at=give_up_at)
        except BaseException:
            self.forget(sent)
            raise
        return sent

    async def receive(self, sent: Sequence[_SentRequest]) -> list[ExecutionAccepted | Rejected]:
        """Wait for the replies; raises Unavailable if one does not arrive in time."""
        try:
            async with asyncio.timeout_at(max((each.give_up_at for each in sent), default=None)):
                return [await each.reply for each in sent]
        except TimeoutError:
            raise Unavailable(
                "the broker has the request, but no executor replied in time; it may still be executed: "
                "look it up, or submit again with the same idempotency key"
            ) from None
        finally:
            self.forget(sent)

    def forget(self, sent: Sequence[_SentRequest]) -> None:
        """Stop waiting for the replies to these requests."""
        for each in sent:
            self._open.pop(each.message.message_id, None)
            each.reply.cancel()

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient: with a durable queue the executor would wait for the disk with each reply.
        await channel.declare_queue(self.queue, exclusive=True)
        if self._declared.is_set():
            self._declared_again.set()
        self._declared.set()

    async def _until_declared(self, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._declared.wait()
        except TimeoutError:
            reason = self._consumer.last_error or "not connected"
            raise Unavailable(f"no usable connection to the broker: {reason}") from None

    async def _repeat_unanswered(self) -> NoReturn:
        """Repeat the requests without a reply when the queue was lost: replies may be lost with it."""
        while True:
            await self._declared_again.wait()
            self._declared_again.clear()
            unanswered = [each for each in self._open.values() if not each.reply.done()]
            if unanswered:
                logger.info("requests_asked_again", extra={"messages": len(unanswered)})
                give_up_at = max(each.give_up_at for each in unanswered)
                # The callers time out at the same instant, with an error of their own.
                with suppress(Unavailable):
                    await self._sender.send([each.message for each in unanswered], give_up_at=give_up_at)

    def _take(self, delivery: Delivery) -> None:
        sent = self._open.get(delivery.correlation_id or "")
        if sent is None or sent.reply.done():
            return
        try:
            sent.reply.set_result(_read_reply(delivery))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "answer_not_understood", extra={"type": delivery.type, "reason": _reason_of(error)}
            )


def _reason_of(error: Exception) -> str:
    return explained(error, whole="body") if isinstance(error, ValidationError) else repr(error)


def _read_reply(delivery: Delivery) -> ExecutionAccepted | Rejected:
    if delivery.type == EXECUTION_ACCEPTED:
        return ExecutionAccepted.model_validate_json(delivery.body)
    # Not with the strict model: a newer executor may have more codes.
    reply = from_json(delivery.body)
    return Rejected(str(reply["code"]), str(reply["message"]))


@dataclass(slots=True, kw_only=True)
class _Parcel:
    message: Outgoing
    give_up_at: float
    """In the time of the event loop. Nothing is sent after its caller received an error."""
    direct: bool = False

    def addressed(self) -> Outgoing:
        return self.message.to_direct_address() if self.direct else self.message


class RequestSender:
    """Publishes messages in order and repeats them until confirmed. `run` sends them."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._parcels: Batcher[_Parcel, str | None] = Batcher(self._send)

    async def run(self) -> NoReturn:
        """Send until cancelled."""
        await self._parcels.run()

    async def send(self, messages: Sequence[Outgoing], *, give_up_at: float) -> None:
        """Return once the broker confirmed all messages; raises Unavailable if it did not in time.

        The messages are queued before the first await, so calls keep their order.
        """
        reasons = await self._parcels.submit_all(
            [_Parcel(message=message, give_up_at=give_up_at) for message in messages]
        )
        for reason in reasons:
            if reason is not None:
                raise Unavailable(f"the broker has not confirmed the message in time: {reason}")

    async def _send(self, parcels: Sequence[_Parcel]) -> list[str | None]:
        """Return for each parcel None, or why it was abandoned."""
        given_up: dict[int, str] = {}
        pending = dict(enumerate(parcels))
        pause_seconds, reason = _PAUSE_FIRST_SECONDS, "it waited for earlier messages"
        while pending := self._not_expired(pending, given_up, reason):
            try:
                outcomes = await self._publisher.publish([each.addressed() for each in pending.values()])
            except BrokerUnavailable as error:
                reason = str(error)
                for parcel in pending.values():
                    parcel.direct = False  # the direct exchange may be missing, or forbidden to this account
            else:
                refused = [(i, o) for i, o in zip(pending, outcomes, strict=True) if o in _NOT_CONFIRMED]
                pending = {i: pending[i] for i, _ in refused}
                if not refused:
                    break
                reason = _NOT_CONFIRMED[refused[0][1]]
                for index, outcome in refused:
                    # Another queue on the same exchange may have refused what the request queue accepted.
                    pending[index].direct = outcome is Publication.REFUSED
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
        return [given_up.get(index) for index in range(len(parcels))]

    @staticmethod
    def _not_expired(
        pending: dict[int, _Parcel], given_up: dict[int, str], reason: str
    ) -> dict[int, _Parcel]:
        now = asyncio.get_running_loop().time()
        given_up.update({index: reason for index, parcel in pending.items() if parcel.give_up_at <= now})
        return {index: parcel for index, parcel in pending.items() if index not in given_up}
