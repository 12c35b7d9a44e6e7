"""Asks the executor and returns its answers, over any loss of the connection.

In: requests on the wire. Out: what the executor said to each, in order. The answers come to a queue of this
client alone, which goes with its connection; when it is declared anew, whatever is unanswered is asked again
under the same message id, and the executor answers again without doing it twice (P5). Next: `outbox`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from pydantic import ValidationError
from pydantic_core import from_json

from turnstile.client.errors import Rejected, Unavailable
from turnstile.client.outbox import Outbox
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.messages import ACCEPTED, ExecutionAccepted

logger = logging.getLogger(__name__)

_BATCH_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request on its way, and where its answer will be."""

    message: Outgoing
    answer: asyncio.Future[ExecutionAccepted | Rejected]
    give_up_at: float
    """In the loop's own time."""


class Answers:
    """The open questions of one client. `run` keeps it going."""

    def __init__(self, consumer: ConsumerConnection, outbox: Outbox, *, queue: str) -> None:
        self.queue = queue
        self._consumer = consumer
        self._outbox = outbox
        self._open: dict[str, Asked] = {}
        self._declared = asyncio.Event()
        self._declared_anew = asyncio.Event()

    async def run(self) -> NoReturn:
        """Take answers until cancelled."""
        subscription = self._consumer.subscribe(self.queue, prefetch=_BATCH_MAX, declare=self._declare)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_again(), name="ask-again")
            while True:
                deliveries = await subscription.next_batch(_BATCH_MAX)
                for delivery in deliveries:
                    self._take(delivery)
                subscription.ack(deliveries)

    async def ask(self, messages: Sequence[Outgoing], *, timeout_seconds: float) -> list[Asked]:
        """Send requests and return once the broker has them; raises Unavailable when it has not in time."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_seconds
        await self._until_declared(give_up_at)
        asked = [Asked(message=each, answer=loop.create_future(), give_up_at=give_up_at) for each in messages]
        self._open.update({each.message.message_id: each for each in asked})
        try:
            await self._outbox.send(messages, give_up_at=give_up_at)
        except BaseException:
            self.forget(asked)
            raise
        return asked

    async def answers(self, asked: Sequence[Asked]) -> list[ExecutionAccepted | Rejected]:
        """Wait for the answers; raises Unavailable when one does not come in time."""
        try:
            async with asyncio.timeout_at(max((each.give_up_at for each in asked), default=None)):
                return [await each.answer for each in asked]
        except TimeoutError:
            raise Unavailable(
                "the broker has the request, and no executor answered in time; it may still be run: "
                "look, or submit again with the same idempotency key"
            ) from None
        finally:
            self.forget(asked)

    def forget(self, asked: Sequence[Asked]) -> None:
        """Leave questions open that nobody waits for any more."""
        for each in asked:
            self._open.pop(each.message.message_id, None)
            each.answer.cancel()

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient, since a durable queue would have the executor wait for the disk with each answer.
        await channel.declare_queue(self.queue, exclusive=True)
        if self._declared.is_set():
            self._declared_anew.set()
        self._declared.set()

    async def _until_declared(self, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._declared.wait()
        except TimeoutError:
            reason = self._consumer.last_error or "not connected"
            raise Unavailable(f"no usable connection to the broker: {reason}") from None

    async def _ask_again(self) -> NoReturn:
        """Repeat what is open whenever the queue was lost, since answers may have been lost with it."""
        while True:
            await self._declared_anew.wait()
            self._declared_anew.clear()
            unanswered = [each for each in self._open.values() if not each.answer.done()]
            if unanswered:
                logger.info("requests_asked_again", extra={"messages": len(unanswered)})
                give_up_at = max(each.give_up_at for each in unanswered)
                # Whoever asked is told at that same instant that it was not possible.
                with suppress(Unavailable):
                    await self._outbox.send([each.message for each in unanswered], give_up_at=give_up_at)

    def _take(self, delivery: Delivery) -> None:
        asked = self._open.get(delivery.correlation_id or "")
        if asked is None or asked.answer.done():
            return
        try:
            asked.answer.set_result(_answer(delivery))
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            logger.warning("answer_not_understood", extra={"type": delivery.type, "reason": str(error)})


def _answer(delivery: Delivery) -> ExecutionAccepted | Rejected:
    if delivery.type == ACCEPTED:
        return ExecutionAccepted.model_validate_json(delivery.body)
    # Not by the strict shape: a newer executor may know more codes.
    told = from_json(delivery.body)
    return Rejected(str(told["code"]), str(told["message"]))
