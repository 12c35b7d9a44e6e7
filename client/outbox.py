"""Sends messages for certain and in order: a publish whose outcome is unknown is repeated as it was.

In: messages and the instant at which their sender gives up. Out: nothing once the broker has confirmed all
of them, else `Unavailable`. A repeat has the same message id, by which the executor knows it again (P5); one
batch is with the broker at a time, so the order of calls is the arrival order (P2). Next: `common.broker`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from turnstile.client.errors import Unavailable
from turnstile.common.batcher import Batcher
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher

_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0
_NOT_CONFIRMED: Final = {
    Publication.RETURNED: "no executor has declared its request queue on this broker yet",
    Publication.REFUSED: "the request queue refuses messages",
}


@dataclass(slots=True, kw_only=True)
class _Parcel:
    message: Outgoing
    give_up_at: float
    """In the loop's own time. Nothing is sent later for a sender who was told that it failed."""
    by_door: bool = False

    def addressed(self) -> Outgoing:
        return self.message.by_door() if self.by_door else self.message


class Outbox:
    """What this client publishes. `run` keeps it going."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._parcels: Batcher[_Parcel, str | None] = Batcher(self._send)

    async def run(self) -> NoReturn:
        """Send until cancelled."""
        await self._parcels.run()

    async def send(self, messages: Sequence[Outgoing], *, give_up_at: float) -> None:
        """Return once the broker has taken all; raises Unavailable when it has not in time.

        They stand in line before the first await: who calls first is first.
        """
        reasons = await self._parcels.submit_all(
            [_Parcel(message=message, give_up_at=give_up_at) for message in messages]
        )
        for reason in reasons:
            if reason is not None:
                raise Unavailable(f"the broker has not confirmed the message in time: {reason}")

    async def _send(self, parcels: Sequence[_Parcel]) -> list[str | None]:
        """Return for each parcel why it was given up, or None."""
        given_up: dict[int, str] = {}
        pending = dict(enumerate(parcels))
        pause_seconds, reason = _PAUSE_FIRST_SECONDS, "it waited behind others"
        while pending := self._still_wanted(pending, given_up, reason):
            try:
                outcomes = await self._publisher.publish([each.addressed() for each in pending.values()])
            except BrokerUnavailable as error:
                reason = str(error)
                for parcel in pending.values():
                    parcel.by_door = False  # the door may be missing, or forbidden to this account
            else:
                refused = [(i, o) for i, o in zip(pending, outcomes, strict=True) if o in _NOT_CONFIRMED]
                pending = {i: pending[i] for i, _ in refused}
                if not refused:
                    break
                reason = _NOT_CONFIRMED[refused[0][1]]
                for index, outcome in refused:
                    # A queue of others may be bound beside the request queue, and refuse what that one took.
                    pending[index].by_door = outcome is Publication.REFUSED
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
        return [given_up.get(index) for index in range(len(parcels))]

    @staticmethod
    def _still_wanted(
        pending: dict[int, _Parcel], given_up: dict[int, str], reason: str
    ) -> dict[int, _Parcel]:
        now = asyncio.get_running_loop().time()
        given_up.update({index: reason for index, parcel in pending.items() if parcel.give_up_at <= now})
        return {index: parcel for index, parcel in pending.items() if index not in given_up}
