"""Drains the queue `executions.dead_letters` into the table `ledger.dead_letter`.

In: deliveries, a batch at a time. Out: rows, committed before the batch is acknowledged (P5). A fingerprint
identifies a delivery that comes again after a crash, so any number of executors may drain side by side.
Uses a connection of its own: large dead letters delay nothing else (P9).
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Final

import asyncpg

from turnstile.common.broker.connection import Declare
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.topology import DEAD_LETTERS
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.errors import StatementTimeout, Unavailable
from turnstile.common.lifecycle import done_before
from turnstile.common.requests import request_bytes_max
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.dead_letters.message import (
    CUT_BODY_BYTES,
    DeadLetter,
    bare_dead_letter,
    read_dead_letter,
)
from turnstile.executor.metrics import DEAD_LETTERS_STORED, dead_letter_label
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import statements

logger = logging.getLogger(__name__)
_STATEMENTS: Final = statements("dead_letters/dead_letters.sql")
_REFUSED: Final = Episodes(logger, "dead_letter_refused", level=logging.ERROR)
_UNREADABLE: Final = Episodes(logger, "dead_letter_unreadable", level=logging.ERROR)
_POSTPONED: Final = Episodes(logger, "dead_letters_postponed")

_BATCH_MAX: Final = 20
"""Dead letters in memory, and in one transaction."""
_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a larger message only the properties are stored."""
_BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
_PAUSE_SECONDS: Final = 1.0
_LONE_TIMEOUTS_MAX: Final = 3
"""How often the database may time out over one message alone."""
_LOGGED_BYTES_MAX: Final = 16 * 1024
_ROOM_SHARE: Final = 10
"""Prunes whenever a tenth of the retention bounds was stored."""
_STORED: Final = tuple(field.name for field in fields(DeadLetter) if field.name != "body")


class Drain:
    """Stores dead letters until it is stopped."""

    def __init__(
        self, settings: ExecutorSettings, database: Database, *, make_room: Callable[[], Awaitable[int]]
    ) -> None:
        """`make_room` prunes what exceeds the retention bounds."""
        self._settings = settings
        self._database = database
        self._make_room = make_room
        # The replay of a body larger than any acceptable one would be refused again.
        self._body_bytes_max = max(
            request_bytes_max(settings.parameters_bytes_max),
            settings.event_result_max_bytes + CUT_BODY_BYTES,
        )
        self._new_rows = 0
        self._new_bytes = 0

    async def run(self, stop: asyncio.Event, *, declare: Declare) -> None:
        """Drain until `stop`; the current batch is stored and acknowledged first."""
        consumer = ConsumerConnection(
            self._settings.amqp_url.get_secret_value(), name="executor dead letters"
        )
        connection = asyncio.create_task(consumer.run(), name="dead-letters-connection")
        try:
            subscription = consumer.subscribe(
                DEAD_LETTERS,
                prefetch=_BATCH_MAX,
                declare=declare,
                byte_bounds=ByteBounds(held=2 * _MESSAGE_BYTES_MAX, one=_MESSAGE_BYTES_MAX),
            )
            await self._drain(subscription, stop)
        finally:
            connection.cancel()
            await asyncio.wait({connection})

    async def _drain(self, subscription: Subscription, stop: asyncio.Event) -> None:
        async def arrive() -> None:
            batch.extend(await subscription.next_batch(_BATCH_MAX, bytes_max=_BATCH_BYTES_MAX))

        while not stop.is_set():
            batch: list[Delivery] = []
            if await done_before(arrive(), stop) and await self._store_in_time(batch, stop):
                reached(CrashPoint.DEAD_LETTERS_STORED)
                subscription.ack(batch)

    async def _store_in_time(self, batch: Sequence[Delivery], stop: asyncio.Event) -> bool:
        """Store a batch once the database answers: singly if it takes too long, and at last only in the log.

        False: it was to stop before.
        """
        timeouts = 0
        # A delivery whose channel was lost comes again.
        while live := [delivery for delivery in batch if delivery.live]:
            try:
                await self.store(live)
                _POSTPONED.works("letters")
                return True
            except StatementTimeout as error:
                _POSTPONED.failed("letters", reason=str(error))
                if len(live) > 1:
                    return all([await self._store_in_time([each], stop) for each in live])
                timeouts += 1
                if timeouts == _LONE_TIMEOUTS_MAX:
                    _log_dropped(live[0], f"{error}, {timeouts} times for this message alone")
                    return True
            except (Unavailable, asyncpg.PostgresError) as error:
                _POSTPONED.failed("letters", reason=str(error))
                if not await done_before(asyncio.sleep(_PAUSE_SECONDS), stop):
                    return False
        return True

    async def store(self, deliveries: Sequence[Delivery]) -> None:
        """Store a batch; raises Unavailable."""
        await self._keep_within_bounds()
        letters = []
        for delivery in deliveries:
            letters.append(self._read(delivery))
            await asyncio.sleep(0)  # A large body takes milliseconds to hash.
        try:
            codes = await self._insert(letters)
        except REFUSED_BY_DATABASE as error:
            if len(deliveries) > 1:
                for delivery in deliveries:
                    await self.store([delivery])
                return
            _REFUSED.failed("letters", reason=str(error))
            codes = await self._insert([bare_dead_letter(deliveries[0], str(error))])
        for code in codes:
            DEAD_LETTERS_STORED.add(dead_letter_label(code))
        self._new_rows += len(letters)
        self._new_bytes += sum(letter.stored_bytes for letter in letters)

    def _read(self, delivery: Delivery) -> DeadLetter:
        try:
            return read_dead_letter(delivery, body_bytes_max=self._body_bytes_max)
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            # An unreadable message must not keep those behind it from being stored (P9).
            _UNREADABLE.broke(type(error).__name__, error, message_id=delivery.message_id)
            return bare_dead_letter(delivery, repr(error))

    async def _insert(self, letters: Sequence[DeadLetter]) -> list[str]:
        """Return the codes of the new ones."""
        stored = [{name: getattr(letter, name) for name in _STORED} for letter in letters]
        rows = await self._database.fetch(
            _STATEMENTS["store"], json.dumps(stored, default=_iso), [letter.body for letter in letters]
        )
        return [row["code"] for row in rows]

    async def _keep_within_bounds(self) -> None:
        """Prune during a flood, before storing more: the watchdog alone would be too late."""
        bounds = self._settings
        if (
            self._new_rows * _ROOM_SHARE > bounds.retention_dead_letters_count
            or self._new_bytes * _ROOM_SHARE > bounds.retention_dead_letters_bytes
        ):
            await self._make_room()
            self._new_rows = self._new_bytes = 0


def _log_dropped(delivery: Delivery, reason: str) -> None:
    """Log a dead letter that the database never finishes to store."""
    logger.error(
        "dead_letter_dropped",
        extra={
            "reason": reason,
            "message_id": delivery.message_id,
            "body": delivery.body[:_LOGGED_BYTES_MAX].decode(errors="backslashreplace"),
        },
    )


def _iso(value: object) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()
