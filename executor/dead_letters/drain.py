"""Drain the queue `executions.dead_letters` into the table `dead_letter`.

In: deliveries, a batch at a time. Out: rows, committed before the batch is acknowledged (P5). A delivery that
comes again after a crash is recognised by its fingerprint, so any number of executors may drain side by side.
On a connection of its own: large letters hold up neither requests nor completions (P9). Next: `desk` is what
the API calls, `executor.retention` prunes.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Final

from turnstile.common.broker.connection import Declare
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.outstanding import ByteBounds
from turnstile.common.broker.topology import DEAD_LETTERS
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.requests import request_bytes_max
from turnstile.executor.dead_letters.letter import CUT_BODY_BYTES, Letter, bare_letter, read_letter
from turnstile.executor.intake import Done, take_in
from turnstile.executor.metrics import DEAD_LETTERS_STORED, dead_letter_label
from turnstile.executor.settings import ExecutorSettings

logger = logging.getLogger(__name__)

_LETTERS_MAX: Final = 20
"""Letters in memory, and in one transaction."""
_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a larger message only the properties are stored."""
_LOGGED_BYTES_MAX: Final = 16 * 1024
_ROOM_SHARE: Final = 10
"""Room is made whenever a tenth of what may be kept was stored."""
_STORED: Final = tuple(field.name for field in fields(Letter) if field.name != "body")


class Drain:
    """Stores what the broker's queue holds, until it is stopped."""

    def __init__(
        self, settings: ExecutorSettings, database: Database, *, make_room: Callable[[], Awaitable[int]]
    ) -> None:
        """`make_room` prunes what is more than is kept."""
        self._settings = settings
        self._database = database
        self._make_room = make_room
        # Of a body that is larger than any that can be taken, a replay would be refused again.
        self._body_bytes_max = max(
            request_bytes_max(settings.parameters_bytes_max),
            settings.event_result_max_bytes + CUT_BODY_BYTES,
        )
        self._new_rows = 0
        self._new_bytes = 0

    async def run(self, stop: asyncio.Event, *, declare: Declare) -> None:
        """Drain until `stop`; the batch in hand is stored and acknowledged first."""
        consumer = ConsumerConnection(
            self._settings.amqp_url.get_secret_value(), name="executor dead letters"
        )
        connection = asyncio.create_task(consumer.run(), name="dead-letters-connection")
        try:
            subscription = consumer.subscribe(
                DEAD_LETTERS,
                prefetch=_LETTERS_MAX,
                declare=declare,
                byte_bounds=ByteBounds(held=2 * _MESSAGE_BYTES_MAX, one=_MESSAGE_BYTES_MAX),
            )
            await take_in(subscription, self, batch_max=_LETTERS_MAX, stop=stop)
        finally:
            connection.cancel()
            await asyncio.wait({connection})

    async def decide(self, deliveries: Sequence[Delivery]) -> Done:
        """Store a batch; raises Unavailable."""
        await self._keep_within_bounds()
        letters = []
        for delivery in deliveries:
            letters.append(self._read(delivery))
            await asyncio.sleep(0)  # A large body takes milliseconds to hash.
        try:
            codes = await self._store(letters)
        except REFUSED_BY_DATABASE as error:
            if len(deliveries) == 1:
                logger.error("dead_letter_refused", extra={"reason": str(error)})
                codes = await self._store([bare_letter(deliveries[0], str(error))])
            else:
                for delivery in deliveries:
                    await self.decide([delivery])
                return Done()
        for code in codes:
            DEAD_LETTERS_STORED.add(dead_letter_label(code))
        self._new_rows += len(letters)
        self._new_bytes += sum(letter.stored_bytes for letter in letters)
        return Done()

    def put_aside(self, delivery: Delivery, reason: str) -> Done:
        """Give up a letter that the database never finishes to store; it is in the log."""
        logger.error(
            "dead_letter_dropped",
            extra={
                "reason": reason,
                "message_id": delivery.message_id,
                "body": delivery.body[:_LOGGED_BYTES_MAX].decode(errors="backslashreplace"),
            },
        )
        return Done()

    async def tell(self, _: Done) -> None:
        """Nobody waits for a dead letter."""
        reached(CrashPoint.DEAD_LETTERS_STORED)

    def _read(self, delivery: Delivery) -> Letter:
        try:
            return read_letter(delivery, body_bytes_max=self._body_bytes_max)
        except Exception as error:
            # Whatever a sender made of it, the letters behind it are stored (P9).
            logger.exception("dead_letter_unreadable")
            return bare_letter(delivery, repr(error))

    async def _store(self, letters: Sequence[Letter]) -> list[str]:
        """Return the codes of those that are new."""
        rows = await self._database.fetch(
            "SELECT turnstile.store_dead_letters($1, $2)",
            json.dumps(
                [{name: getattr(letter, name) for name in _STORED} for letter in letters], default=_iso
            ),
            [letter.body for letter in letters],
        )
        return [row[0] for row in rows]

    async def _keep_within_bounds(self) -> None:
        """Prune in a flood, and let it wait meanwhile: the watchdog alone would come too late."""
        bounds = self._settings
        if (
            self._new_rows * _ROOM_SHARE > bounds.retention_dead_letters_count
            or self._new_bytes * _ROOM_SHARE > bounds.retention_dead_letters_bytes
        ):
            await self._make_room()
            self._new_rows = self._new_bytes = 0


def _iso(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()
