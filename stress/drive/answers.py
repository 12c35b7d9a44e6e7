"""Takes the executor's answers, over any loss of the connection.

In: answers on a queue of this process alone. Out: which execution each order became, in the table of orders.
The queue goes with its connection; when it is declared anew, answers may have been lost with it, and the
submitters ask again. Next: `submitter`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from pydantic_core import from_json

from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.messages import ACCEPTED, REJECTED
from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.progression import Progression
from turnstile.stress.drive.requests import Requests
from turnstile.stress.tables import NONE, Answer, Table

_BATCH_MAX: Final = 1000


class Answers:
    """The answers of one stage. `run` keeps it going."""

    def __init__(
        self,
        amqp_url: str,
        queue: str,
        *,
        orders: Table,
        requests: Requests,
        progression: Progression,
        clock: Clock,
    ) -> None:
        self._connection = ConsumerConnection(amqp_url, name="stress-answers")
        self._queue = queue
        self._answer = orders["answer"]
        self._answered_at = orders["answered_at"]
        self._execution_id = orders["execution_id"]
        self._requests = requests
        self._progression = progression
        self._clock = clock
        self._declared = asyncio.Event()
        self._lost: list[Callable[[], None]] = []

    def when_lost(self, ask_again: Callable[[], None]) -> None:
        """Have `ask_again` called whenever answers may have been lost."""
        self._lost.append(ask_again)

    async def declared(self) -> None:
        """Wait until an answer would find its way; for how long, the caller says."""
        await self._declared.wait()

    async def run(self) -> NoReturn:
        """Take answers until cancelled."""
        subscription = self._connection.subscribe(self._queue, prefetch=_BATCH_MAX, declare=self._declare)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._connection.run(), name="answers-connection")
            while True:
                deliveries = await subscription.next_batch(_BATCH_MAX)
                self._take(deliveries)
                subscription.ack(deliveries)

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient, since a durable queue would have the executor wait for the disk with each answer.
        await channel.declare_queue(self._queue, exclusive=True)
        if self._declared.is_set():
            for ask_again in self._lost:
                ask_again()
        self._declared.set()

    def _take(self, deliveries: Sequence[Delivery]) -> None:
        now = self._clock.now()
        for delivery in deliveries:
            number = self._requests.number_of(delivery.correlation_id)
            if number == NONE or self._answer[number] != Answer.NONE:
                continue
            if delivery.type == REJECTED:
                answer = Answer.REJECTED
            elif delivery.type == ACCEPTED:
                told = from_json(delivery.body)
                self._execution_id[number] = told["execution_id"]
                answer = Answer.DUPLICATE if told["duplicate"] else Answer.ACCEPTED
            else:
                continue
            self._answer[number] = answer
            self._answered_at[number] = now
            self._progression.answer(rejected=answer is Answer.REJECTED)
