"""The leadership: an executor waits until it can lead, takes over, loads, leads turn by turn, and resigns.

In: what is seen of other executors, by this process's own clock. Out: turns under an epoch above all earlier
ones. While a load lasts, empty turns renew the leadership. A leadership that ends for whatever reason closes
the broker, so that what it has taken goes to the next one (P6).
"""

import asyncio
from contextlib import suppress
from typing import Any

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.executor.leader.outbox import RESULT_BYTES_MAX, event_of_outcome
from turnstile.executor.leader.ports import (
    BrokerUnavailable,
    Deposed,
    NewestTurn,
    OutcomeUnknown,
)
from turnstile.executor.leader.records import Loaded, Turn
from turnstile.executor.leader.turns import Leadership, Reload, Turns


class Leader:
    """An executor that leads, or waits until it can."""

    def __init__(self, turns: Turns, *, event_result_bytes_max: int = RESULT_BYTES_MAX) -> None:
        self.turns, self._event_bytes_max = turns, event_result_bytes_max
        self.executor_id, self.times = turns.executor_id, turns.times
        self.store, self.broker, self.clock = turns.store, turns.broker, turns.clock
        self.leadership: Leadership | None = None
        """None: it does not lead."""
        self._is_stopping = False

    async def run(self) -> None:
        """Wait for the leadership and lead, again and again, until `stop`."""
        above: int | None = None
        while not self._is_stopping:
            try:
                if above is None:
                    await self._wait_for_leadership()
                if not self._is_stopping:
                    await self._lead(above)
            except Reload as reload:
                above = reload.above
            except Deposed:
                above = None
            except OutcomeUnknown:
                await self.clock.sleep(self.times.poll)
            finally:
                self.leadership = None
                if self.turns.audience is not None:
                    self.turns.audience.leadership_over()
                await self.turns.stop_publishing()
                await self.broker.close()

    def stop(self) -> None:
        """Finish the present turn, and let another executor lead."""
        self._is_stopping = True

    def look_at_inbox(self) -> None:
        """Read the inbox in the next turn: a command was stored. The caller wakes the clock."""
        self.turns.has_commands = True

    async def _wait_for_leadership(self) -> None:
        """Return once nothing was heard of a leader for too long, by this process's own clock."""
        seen: NewestTurn | None = None
        since = self.clock.monotonic()
        while not self._is_stopping:
            try:
                newest, is_gone = await self.store.leader_seen()
                has_broker = await self._has_broker()
                await self.store.announce(self.executor_id, has_broker=has_broker)
            except OutcomeUnknown:
                since = self.clock.monotonic()
            else:
                now = self.clock.monotonic()
                if newest != seen:
                    seen, since = newest, now
                is_gone = is_gone and has_broker and now > since
                if newest is None or is_gone or now - since > self.times.leadership:
                    return
            await self.clock.sleep(self.times.poll)

    async def _has_broker(self) -> bool:
        with suppress(BrokerUnavailable):
            await self.broker.publish([])
            return True
        return False

    async def _lead(self, above: int | None) -> None:
        """Lead until something goes wrong; `above` is None for an executor that did not lead before."""
        self.turns.committed_at = self.clock.monotonic()
        epoch = await self.store.take_over(
            self.executor_id, above=above or 0, only_if_leading=above is not None
        )
        reached(CrashPoint.LEADERSHIP_TAKEN)
        loading = asyncio.ensure_future(self._load(epoch))
        try:
            number = await self._renew_while(loading, epoch)
        finally:
            loading.cancel()
            # Also the error of a load that is given up is retrieved.
            await asyncio.gather(loading, return_exceptions=True)
        loaded, loaded_at = loading.result()
        lead = Leadership(
            loaded, self.clock, loaded_at, self.times.stop, event_result_bytes_max=self._event_bytes_max
        )
        lead.number = number
        lead.sessions.welcome_all()
        await self._recall_events(lead)
        reached(CrashPoint.LEADERSHIP_LOADED)
        self.leadership = lead
        self.turns.began_at = self.clock.monotonic()
        while not self._is_stopping:
            await self.turns.next_turn(lead)
        await self.turns.last_turns(lead)
        await self.turns.published()
        await self.store.resign()

    async def _recall_events(self, lead: Leadership) -> None:
        """Publish the events of the last turn again: its leader may have died before it could."""
        if lead.memory.unpublished:
            ended = await self.turns.persist(lambda: self.store.outcomes(lead.memory.unpublished))
            ids = lead.definitions.action_ids
            lead.outbox.store(
                event_of_outcome(ended[each], action_id=ids.get(ended[each].action_ref))
                for each in lead.memory.unpublished
                if each in ended
            )

    async def _load(self, epoch: int) -> tuple[Loaded, float]:
        """Load; return also the instant by this process's clock, which the turns beside it may delay."""
        loaded = await self.store.load(epoch)
        return loaded, self.clock.monotonic()

    async def _renew_while(self, loading: "asyncio.Future[Any]", epoch: int) -> int:
        """Write empty turns while the load lasts; return the number of the last one."""
        number = 0
        while not loading.done():
            sent_at = self.clock.monotonic()
            try:
                await self.store.write(Turn(epoch=epoch, number=number + 1, at=0.0))
            except OutcomeUnknown:
                raise Reload from None
            number += 1
            self.turns.committed_at = sent_at
            await asyncio.wait({loading}, timeout=self.times.renewal)
        return number
