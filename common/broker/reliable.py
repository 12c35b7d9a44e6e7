"""Publishes the protocol's messages until their own queue has them, whatever other queues do (P4, P5, P9).

A message published to the exchange `executions` reaches every queue that is bound there, and the broker
confirms it only when each of them took it. So a message that is not confirmed is published once more to its
direct address, its own queue alone; the best-effort publisher repeats the copy for listeners a few times. A
message that its own queue refuses is abandoned after a few tries: the row is the outbox, and the watchdog
publishes it again. In: batches of `Outgoing`. Out: nothing, once each is confirmed or abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turnstile.common.broker.best_effort import BestEffortPublisher, Dropped, RecentAddresses
from turnstile.common.broker.errors import BrokerUnavailable, NotConfirmed, NotSent
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_PAUSE_SECONDS: Final = 0.2
_TRIES_MAX: Final = 3
"""How often the message's own queue may refuse it."""
_REFUSAL_REMEMBERED_SECONDS: Final = 5.0
"""For this long after a refusal an address gets only one try."""
_SILENCE_REMEMBERED_SECONDS: Final = 60.0
"""How long an address is avoided after its messages were not confirmed in time."""
_COPIES_TRIES_MAX: Final = 2

Restore = Callable[[Sequence[Outgoing]], Awaitable[Sequence[Outgoing]]]


@dataclass(slots=True, kw_only=True)
class _Parcel:
    message: Outgoing
    direct: bool
    refusals: int = 0
    """By its own queue, or its direct address."""

    def addressed(self) -> Outgoing:
        return self.message.to_direct_address() if self.direct else self.message


class ReliablePublisher:
    """Safe to share between tasks: calls run concurrently, and none waits for another's refused message."""

    def __init__(
        self,
        publisher: Publisher,
        best_effort: BestEffortPublisher,
        *,
        restore: Restore,
        on_abandoned: Dropped,
    ) -> None:
        """`restore` is given messages whose queues are missing, and returns those worth another try."""
        self._publisher = publisher
        self._best_effort = best_effort
        self._restore = restore
        self._on_abandoned = on_abandoned
        self._refused = RecentAddresses(_REFUSAL_REMEMBERED_SECONDS)
        self._silent = RecentAddresses(_SILENCE_REMEMBERED_SECONDS)

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Return once each message is confirmed by its own queue, or abandoned. Waits out an outage."""
        pending = [
            _Parcel(message=m, direct=m.direct_address is not None and m in self._silent) for m in messages
        ]
        self._best_effort.post([p.message for p in pending if p.direct], tries_max=1)
        while pending:
            try:
                outcomes = await self._publisher.publish([p.addressed() for p in pending])
            except NotSent:
                await asyncio.sleep(_PAUSE_SECONDS)
            except NotConfirmed:
                self._avoid_silence(pending)
            except BrokerUnavailable as error:
                pending = self._without_direct_addresses(pending, str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            except ValueError as error:
                pending = await self._divide(pending, str(error))
            else:
                pending = await self._unconfirmed(list(zip(pending, outcomes, strict=True)))

    async def _unconfirmed(self, answers: Sequence[tuple[_Parcel, Publication]]) -> list[_Parcel]:
        """Return what is to be published again."""
        returned = [parcel for parcel, outcome in answers if outcome is Publication.RETURNED]
        refused = [parcel for parcel, outcome in answers if outcome is Publication.REFUSED]
        by_some_queue = [p for p in refused if p.message.direct_address is not None and not p.direct]
        by_own_queue = [p for p in refused if p.message.direct_address is None or p.direct]
        self._repeat_for_listeners([parcel.message for parcel in by_some_queue])
        for parcel in by_some_queue:
            parcel.direct = True
        again = self._worth_another_try(by_own_queue)
        if returned:
            again += await self._restored(returned)
        elif again:
            await asyncio.sleep(_PAUSE_SECONDS)
        return by_some_queue + again

    async def _restored(self, returned: Sequence[_Parcel]) -> list[_Parcel]:
        await asyncio.sleep(_PAUSE_SECONDS)
        worth = {id(message) for message in await self._restore([p.message for p in returned])}
        for parcel in returned:
            parcel.direct = False
            if id(parcel.message) not in worth:
                self._on_abandoned(parcel.message, "its queue is missing and cannot be declared")
        return [parcel for parcel in returned if id(parcel.message) in worth]

    def _worth_another_try(self, refused: Sequence[_Parcel]) -> list[_Parcel]:
        again: list[_Parcel] = []
        for parcel in refused:
            addressed = parcel.addressed()
            parcel.refusals += 1
            if parcel.refusals < _TRIES_MAX and addressed not in self._refused:
                again.append(parcel)
            else:
                self._refused.add(addressed)
                self._on_abandoned(addressed, "its queue refuses messages")
        return again

    def _repeat_for_listeners(self, messages: Sequence[Outgoing]) -> None:
        """Repeat the listeners' copies, unless such an address refused a message recently."""
        refused_recently = [message in self._refused for message in messages]
        for message, refused in zip(messages, refused_recently, strict=True):
            self._refused.add(message)
            if refused:
                self._on_abandoned(message, "a queue that is bound to this exchange refuses it")
            else:
                self._best_effort.post([message], tries_max=_COPIES_TRIES_MAX)

    def _avoid_silence(self, pending: Sequence[_Parcel]) -> None:
        """Use direct addresses for a while: another queue on the same exchange may never confirm."""
        for parcel in pending:
            if parcel.message.direct_address is not None and not parcel.direct:
                self._silent.add(parcel.message)
                self._best_effort.post([parcel.message], tries_max=1)
                parcel.direct = True

    def _without_direct_addresses(self, pending: Sequence[_Parcel], error: str) -> list[_Parcel]:
        """Return what to publish again: a missing or forbidden direct address closes the channel."""
        again: list[_Parcel] = []
        for parcel in pending:
            if parcel.direct:
                parcel.direct = False
                parcel.refusals += 1
                self._silent.discard(parcel.message)
            if parcel.refusals < _TRIES_MAX:
                again.append(parcel)
            else:
                self._on_abandoned(parcel.message.to_direct_address(), f"it cannot be published: {error}")
        return again

    async def _divide(self, pending: list[_Parcel], error: str) -> list[_Parcel]:
        """Split a batch with a message that AMQP cannot carry, until that message is alone."""
        if len(pending) == 1:
            self._on_abandoned(pending[0].message, f"AMQP cannot carry it: {error}")
            return []
        middle = len(pending) // 2
        await self.publish([parcel.message for parcel in pending[:middle]])
        return pending[middle:]
