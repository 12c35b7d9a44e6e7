"""Publishes what the protocol needs until its own queue has it, whatever queues of others do (P4, P5, P9).

A message addressed to the exchange `executions` reaches every queue that is bound there, and the broker
confirms it only where each of them took it. So a message that is not confirmed is published once more by its
door, to its own queue alone; the courier repeats the listeners' copy a few times. A message that its own
queue refuses is abandoned after a few tries: the row is the outbox, and the watchdog publishes it again. In:
batches of `Outgoing`. Out: nothing, once each is confirmed or abandoned. Next: `publisher`, `courier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turnstile.common.broker.connection import BrokerUnavailable, NotConfirmed, NotSent
from turnstile.common.broker.courier import Courier
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_PAUSE_SECONDS: Final = 0.2
_TRIES_MAX: Final = 3
"""How often a message may be refused by its own queue."""
_REFUSAL_REMEMBERED_SECONDS: Final = 5.0
"""A queue that refused so lately is not waited for: one try is enough to see that it still does."""
_SILENCE_REMEMBERED_SECONDS: Final = 60.0
"""How long an address is avoided after its messages were not confirmed in time."""
_COPIES_TRIES_MAX: Final = 2

Abandoned = Callable[[Outgoing, str], None]
Restore = Callable[[Sequence[Outgoing]], Awaitable[Sequence[Outgoing]]]


@dataclass(slots=True, kw_only=True)
class _Parcel:
    message: Outgoing
    by_door: bool
    refusals: int = 0
    """By its own queue, or its door."""

    def addressed(self) -> Outgoing:
        return self.message.by_door() if self.by_door else self.message


class ReliablePublisher:
    """Safe to share between tasks: calls go side by side, and none waits for another's refused message."""

    def __init__(
        self, publisher: Publisher, courier: Courier, *, restore: Restore, on_abandoned: Abandoned
    ) -> None:
        """`restore` is given messages whose queues are missing, and returns those worth another try."""
        self._publisher = publisher
        self._courier = courier
        self._restore = restore
        self._on_abandoned = on_abandoned
        self._refused_at: dict[tuple[str, str], float] = {}
        self._silent_until: dict[tuple[str, str], float] = {}

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Return once each message is confirmed by its own queue, or abandoned. Waits out an outage."""
        pending = [_Parcel(message=m, by_door=self._avoids(m)) for m in messages]
        self._courier.post([p.message for p in pending if p.by_door], tries_max=1)
        while pending:
            try:
                outcomes = await self._publisher.publish([p.addressed() for p in pending])
            except NotSent:
                await asyncio.sleep(_PAUSE_SECONDS)
            except NotConfirmed:
                self._avoid_silence(pending)
            except BrokerUnavailable as error:
                pending = self._without_doors(pending, str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            except ValueError as error:
                pending = await self._divide(pending, str(error))
            else:
                pending = await self._unconfirmed(list(zip(pending, outcomes, strict=True)))

    async def _unconfirmed(self, answers: Sequence[tuple[_Parcel, Publication]]) -> list[_Parcel]:
        """Return what is to be published again."""
        returned = [parcel for parcel, outcome in answers if outcome is Publication.RETURNED]
        refused = [parcel for parcel, outcome in answers if outcome is Publication.REFUSED]
        by_somebody = [p for p in refused if p.message.door is not None and not p.by_door]
        by_own_queue = [p for p in refused if p.message.door is None or p.by_door]
        self._repeat_for_listeners([parcel.message for parcel in by_somebody])
        for parcel in by_somebody:
            parcel.by_door = True
        again = self._worth_another_try(by_own_queue)
        if returned:
            again += await self._restored(returned)
        elif again:
            await asyncio.sleep(_PAUSE_SECONDS)
        return by_somebody + again

    async def _restored(self, returned: Sequence[_Parcel]) -> list[_Parcel]:
        await asyncio.sleep(_PAUSE_SECONDS)
        worth = {id(message) for message in await self._restore([p.message for p in returned])}
        for parcel in returned:
            parcel.by_door = False
            if id(parcel.message) not in worth:
                self._on_abandoned(parcel.message, "its queue is missing and cannot be declared")
        return [parcel for parcel in returned if id(parcel.message) in worth]

    def _worth_another_try(self, refused: Sequence[_Parcel]) -> list[_Parcel]:
        again: list[_Parcel] = []
        for parcel in refused:
            addressed = parcel.addressed()
            parcel.refusals += 1
            if parcel.refusals < _TRIES_MAX and not self._refused_lately(addressed):
                again.append(parcel)
            else:
                self._note_refusal(addressed)
                self._on_abandoned(addressed, "its queue refuses messages")
        return again

    def _repeat_for_listeners(self, messages: Sequence[Outgoing]) -> None:
        """Have the listeners' copies repeated, unless one of them refused such messages just now."""
        lately = [self._refused_lately(message) for message in messages]
        for message, refused_lately in zip(messages, lately, strict=True):
            self._note_refusal(message)
            if refused_lately:
                self._on_abandoned(message, "a queue that is bound to this exchange refuses it")
            else:
                self._courier.post([message], tries_max=_COPIES_TRIES_MAX)

    def _refused_lately(self, message: Outgoing) -> bool:
        refused_at = self._refused_at.get(_address(message))
        now = asyncio.get_running_loop().time()
        return refused_at is not None and now - refused_at < _REFUSAL_REMEMBERED_SECONDS

    def _note_refusal(self, message: Outgoing) -> None:
        self._refused_at[_address(message)] = asyncio.get_running_loop().time()

    def _avoid_silence(self, pending: Sequence[_Parcel]) -> None:
        """Use the doors for a while: a queue bound beside ours may never confirm."""
        silent_until = asyncio.get_running_loop().time() + _SILENCE_REMEMBERED_SECONDS
        for parcel in pending:
            if parcel.message.door is not None and not parcel.by_door:
                self._silent_until[_address(parcel.message)] = silent_until
                self._courier.post([parcel.message], tries_max=1)
                parcel.by_door = True

    def _without_doors(self, pending: Sequence[_Parcel], error: str) -> list[_Parcel]:
        """Return what is to be published again: a door that is missing or forbidden ends the channel."""
        again: list[_Parcel] = []
        for parcel in pending:
            if parcel.by_door:
                parcel.by_door = False
                parcel.refusals += 1
                self._silent_until.pop(_address(parcel.message), None)
            if parcel.refusals < _TRIES_MAX:
                again.append(parcel)
            else:
                self._on_abandoned(parcel.message.by_door(), f"it cannot be published: {error}")
        return again

    def _avoids(self, message: Outgoing) -> bool:
        if message.door is None or not self._silent_until:
            return False
        address = _address(message)
        if self._silent_until.get(address, 0.0) > asyncio.get_running_loop().time():
            return True
        self._silent_until.pop(address, None)
        return False

    async def _divide(self, pending: list[_Parcel], error: str) -> list[_Parcel]:
        """Publish the halves of a batch that AMQP cannot carry, until the one message stands alone."""
        if len(pending) == 1:
            self._on_abandoned(pending[0].message, f"AMQP cannot carry it: {error}")
            return []
        middle = len(pending) // 2
        await self.publish([parcel.message for parcel in pending[:middle]])
        return pending[middle:]


def _address(message: Outgoing) -> tuple[str, str]:
    return message.exchange, message.routing_key
