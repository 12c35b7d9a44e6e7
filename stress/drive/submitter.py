"""Sends one submitter's orders: in their order, confirmed, again where the fate of a message is unknown.

In: rows of the table of orders. Out: when each was sent and confirmed, in the same table. One batch is with
the broker at a time, and a repeat begins with the first message that may be missing: so what this submitter
sends first arrives first (P2). A repeat has the same message id, by which the executor knows it again (P5).
Next: `answers`.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.stress.api import Unreachable
from turnstile.stress.drive.answers import Answers
from turnstile.stress.drive.broker import check_exchange
from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.progression import Progression
from turnstile.stress.drive.requests import Requests
from turnstile.stress.tables import NEVER, Answer, Table

_BATCH_MAX: Final = 500
_PATIENCE_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.1
_NOT_CONFIRMED: Final = {
    Publication.RETURNED: "no executor has declared its request queue on this broker",
    Publication.REFUSED: "the request queue refuses messages",
}

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What the submitters of a stage share."""

    orders: Table
    requests: Requests
    progression: Progression
    clock: Clock
    answers: Answers | None
    """None: nobody asks for any."""
    broker: str
    """For people."""


class Submitter:
    """One connection that publishes, and the orders that go over it."""

    def __init__(self, number: int, amqp_url: str, post: Post) -> None:
        self._publisher = Publisher(amqp_url, name=f"stress-submitter-{number}", declare=check_exchange)
        self._post = post
        self._numbers: Numbers = np.flatnonzero(post.orders["submitter"] == number)
        self._asks_again = asyncio.Event()
        if post.answers is not None:
            post.answers.when_lost(self._asks_again.set)

    async def run(self) -> None:
        """Send everything, then ask again whenever answers were lost, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            connected = tasks.create_task(self._publisher.run(), name="submitter-connection")
            await self._ready()
            self._post.progression.begin()
            sent = 0
            while sent < len(self._numbers):
                await self._ask_again(self._numbers[:sent])
                batch = self._numbers[sent : sent + _BATCH_MAX]
                batch = batch[: await self._post.progression.due(batch)]
                await self._send(batch)
                sent += len(batch)
            while self._post.answers is not None:
                await self._asks_again.wait()
                await self._ask_again(self._numbers)
            connected.cancel()

    async def _ready(self) -> None:
        """Wait until requests would leave and answers arrive, so that what is paced begins in step."""
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                await self._publisher.declare(check_exchange)
                break
            except BrokerUnavailable as error:
                self._check_patience(give_up_at, str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
        if self._post.answers is not None:
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._post.answers.declared()
            except TimeoutError:
                self._check_patience(give_up_at, "no queue for the answers could be declared")

    async def _ask_again(self, numbers: Numbers) -> None:
        """Repeat what was sent and not answered, if its answers may have been lost."""
        if self._asks_again.is_set():
            self._asks_again.clear()
            unanswered = numbers[self._post.orders["answer"][numbers] == Answer.NONE]
            for start in range(0, len(unanswered), _BATCH_MAX):
                await self._send(unanswered[start : start + _BATCH_MAX])

    async def _send(self, numbers: Numbers) -> None:
        """Return once the broker has confirmed all of them."""
        orders = self._post.orders
        messages = self._post.requests.messages(numbers)
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        orders["sent_at"][numbers] = np.minimum(orders["sent_at"][numbers], self._post.clock.now())
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
        confirmed_at = self._post.orders["confirmed_at"]
        fresh = numbers[confirmed_at[numbers] == NEVER]
        confirmed_at[fresh] = self._post.clock.now()
        self._post.progression.confirmed += len(fresh)

    def _check_patience(self, give_up_at: float, reason: str) -> None:
        if asyncio.get_running_loop().time() >= give_up_at:
            raise Unreachable(
                f"{self._post.broker}: the broker took no request for {_PATIENCE_SECONDS:g} s ({reason}); "
                "is it up, and is `executor serve` connected to it?"
            )
