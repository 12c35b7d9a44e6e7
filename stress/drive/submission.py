"""Sends the requests of a scenario and takes the executor's replies, over any loss of a connection.

In: rows of the table of requests. Out: in the same table, when each was sent, confirmed and answered, and
which execution it became. A submitter has one batch in flight at a time, and a repeat begins with the first
message that may be missing: so its requests arrive in the order of sending. A repeat has the same message id,
so the executor detects duplicates.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import numpy as np
from aio_pika.abc import AbstractChannel
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTION_ACCEPTED,
    EXECUTION_REJECTED,
    EXECUTION_REQUESTED,
    EXECUTIONS,
)
from turnstile.common.urls import shown_url
from turnstile.stress.drive.pacing import ScenarioRun
from turnstile.stress.drive.setup import check_exchange
from turnstile.stress.installation import Unreachable
from turnstile.stress.recording import NEVER, NONE, Answer
from turnstile.stress.trace import action_ref

_PUBLISH_BATCH_MAX: Final = 500
_ANSWER_BATCH_MAX: Final = 1000
_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.1
_NOT_CONFIRMED: Final = {
    Publication.RETURNED: "no executor has declared its request queue on this broker",
    Publication.REFUSED: "the request queue rejects messages",
}

Numbers = NDArray[np.int64]


class Requests:
    """Writes the messages of one scenario.

    The message id contains token and request number, so that a reply finds its row.
    """

    def __init__(self, run: ScenarioRun) -> None:
        self._run, self._load = run, run.scenario.load
        self._prefix: Final = f"{run.token}-"
        self.reply_to: Final = f"stress.{run.token}.answers" if self._load.answered else None

    def messages(self, numbers: Numbers) -> list[Outgoing]:
        """Return the messages of these requests."""
        orders = self._run.orders[numbers]
        return list(
            map(self._message, numbers.tolist(), orders["queue"].tolist(), orders["duration_us"].tolist())
        )

    def number_of(self, correlation_id: str | None) -> int:
        """Return the request number of a reply; NONE: not of this scenario."""
        if correlation_id is None or not correlation_id.startswith(self._prefix):
            return NONE
        digits = correlation_id.removeprefix(self._prefix)
        number = int(digits) if digits.isascii() and digits.isdigit() else NONE
        return number if number < len(self._run.orders) else NONE

    def _message(self, number: int, queue: int, duration_us: int) -> Outgoing:
        message_id, load = f"{self._prefix}{number}", self._load
        action, key = divmod(queue, max(load.keys, 1))
        parameters = {"number": number, "milliseconds": duration_us / 1000, "scenario": self._run.token}
        body: dict[str, object] = {"action_ref": action_ref(action), "parameters": parameters}
        if load.keys:
            body["concurrency_key"] = str(key)
        if load.priorities:
            body["priority"] = load.priorities[number % len(load.priorities)]
        return Outgoing(
            exchange=EXECUTIONS,
            routing_key=EXECUTION_REQUESTED,
            body=to_json(body),
            type=EXECUTION_REQUESTED,
            message_id=message_id,
            correlation_id=None if self.reply_to is None else message_id,
            reply_to=self.reply_to,
            app_id="client",
        )


class Answers:
    """Takes the replies of one scenario from a queue of this connection; `run` keeps it going.

    The queue is deleted with its connection. When it is declared again, replies may be lost, and the
    submitters repeat their unanswered requests.
    """

    def __init__(self, run: ScenarioRun, requests: Requests, queue: str) -> None:
        self._connection = ConsumerConnection(run.amqp_url, name="stress-answers")
        self._run, self._requests, self._queue = run, requests, queue
        self._declared = asyncio.Event()
        self._lost: list[Callable[[], None]] = []

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever replies may have been lost."""
        self._lost.append(callback)

    async def declared(self) -> None:
        """Wait until the queue is declared; the caller sets the timeout."""
        await self._declared.wait()

    async def run(self) -> NoReturn:
        """Take replies until cancelled."""
        subscription = self._connection.subscribe(
            self._queue, prefetch=_ANSWER_BATCH_MAX, declare=self._declare
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connection.run(), name="answers-connection")
            while True:
                deliveries = await subscription.next_batch(_ANSWER_BATCH_MAX)
                self._take(deliveries)
                subscription.ack(deliveries)

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient: with a durable queue, the executor would wait for the disk with each reply.
        await channel.declare_queue(self._queue, exclusive=True)
        if self._declared.is_set():
            for callback in self._lost:
                callback()
        self._declared.set()

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        now, orders = self._run.clock.now(), self._run.orders
        for delivery in deliveries:
            number = self._requests.number_of(delivery.correlation_id)
            if number == NONE or orders["answer"][number] != Answer.NONE:
                continue
            if delivery.type == EXECUTION_REJECTED:
                answer = Answer.REJECTED
            elif delivery.type == EXECUTION_ACCEPTED:
                body = from_json(delivery.body)
                orders["execution_id"][number] = body["execution_id"]
                answer = Answer.DUPLICATE if body["duplicate"] else Answer.ACCEPTED
            else:
                continue
            orders["answer"][number] = answer
            orders["answered_at"][number] = now
            self._run.pacing.answer(rejected=answer is Answer.REJECTED)


class Submitter:
    """One publishing connection and its requests; `answers`: None where no replies are requested."""

    def __init__(self, number: int, run: ScenarioRun, requests: Requests, answers: Answers | None) -> None:
        self._publisher = Publisher(run.amqp_url, name=f"stress-submitter-{number}", declare=check_exchange)
        self._run, self._requests, self._answers = run, requests, answers
        self._numbers: Numbers = np.flatnonzero(run.orders["submitter"] == number)
        self._answers_lost = asyncio.Event()
        if answers is not None:
            answers.when_lost(self._answers_lost.set)

    async def run(self) -> None:
        """Send all requests, then repeat unanswered ones whenever replies were lost, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            connected = tasks.create_task(self._publisher.run(), name="submitter-connection")
            await self._ready()
            self._run.pacing.begin()
            sent = 0
            while sent < len(self._numbers):
                await self._repeat_unanswered(self._numbers[:sent])
                batch = self._numbers[sent : sent + _PUBLISH_BATCH_MAX]
                batch = batch[: await self._run.pacing.due(batch)]
                await self._send(batch)
                sent += len(batch)
            while self._answers is not None:
                await self._answers_lost.wait()
                await self._repeat_unanswered(self._numbers)
            connected.cancel()

    async def _ready(self) -> None:
        """Wait until requests and replies can flow, so that all submitters begin together."""
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                await self._publisher.declare(check_exchange)
                break
            except BrokerUnavailable as error:
                self._check_patience(give_up_at, str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
        if self._answers is not None:
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._answers.declared()
            except TimeoutError:
                self._check_patience(give_up_at, "no queue for the replies could be declared")

    async def _repeat_unanswered(self, numbers: Numbers) -> None:
        """Send unanswered requests again, if replies may have been lost."""
        if self._answers_lost.is_set():
            self._answers_lost.clear()
            unanswered = numbers[self._run.orders["answer"][numbers] == Answer.NONE]
            for start in range(0, len(unanswered), _PUBLISH_BATCH_MAX):
                await self._send(unanswered[start : start + _PUBLISH_BATCH_MAX])

    async def _send(self, numbers: Numbers) -> None:
        """Publish requests and return once the broker has confirmed all of them."""
        orders = self._run.orders
        messages = self._requests.messages(numbers)
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        orders["sent_at"][numbers] = np.minimum(orders["sent_at"][numbers], self._run.clock.now())
        while True:
            orders["sendings"][numbers] += 1
            try:
                outcomes = await self._publisher.publish(messages)
            except BrokerUnavailable as error:
                reason = str(error)
            else:
                missing = next((i for i, o in enumerate(outcomes) if o in _NOT_CONFIRMED), len(outcomes))
                self._confirm(numbers[:missing])
                if missing == len(outcomes):
                    return
                reason = _NOT_CONFIRMED[outcomes[missing]]
                numbers, messages = numbers[missing:], messages[missing:]
            self._check_patience(give_up_at, reason)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _confirm(self, numbers: Numbers) -> None:
        confirmed_at = self._run.orders["confirmed_at"]
        fresh = numbers[confirmed_at[numbers] == NEVER]
        confirmed_at[fresh] = self._run.clock.now()
        self._run.pacing.confirmed += len(fresh)

    def _check_patience(self, give_up_at: float, reason: str) -> None:
        if asyncio.get_running_loop().time() >= give_up_at:
            raise Unreachable(
                f"{shown_url(self._run.amqp_url)}: the broker took no request for {_PATIENCE_SECONDS:g} s "
                f"({reason}); check that it runs and that `executor serve` is connected to it"
            )
