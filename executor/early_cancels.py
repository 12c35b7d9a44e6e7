"""Keeps cancels of executions that are not in the record yet, until they are or for about 30 s.

In: cancels for which `request_listener` found no execution. Out: rows of `early_cancel`, bounded in number.
The watchdog looks at them each tick: it cancels what is known by then, and answers and dead-letters what was
kept long enough. A cancel passes the request queue once, so a flood of them does not come back to it (P9).
"""

import asyncio
import hashlib
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import DIED_AT_HEADER, dead_letter, reply, tries_of
from turnstile.common.messages import CancelRequested, ExecutionRejected
from turnstile.executor.cancelling import Canceller
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import DEAD_LETTERED, REFUSED

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 10_000
"""Rows; what comes while there are so many is refused at once."""
KEEP_SECONDS: Final = 30
"""How long a cancel waits for its execution."""
UNKNOWN: Final = "no such execution; check the id or the key"
_GIVEN_UP_MAX: Final = 500
"""Per tick and executor."""
_LEASE_SECONDS: Final = 30.0
_TELL_SECONDS: Final = 1.0
"""Longest wait for the broker: the next look must not wait for it. The rows tell again."""
_OUTGOING_FIELDS: Final = frozenset(field.name for field in fields(Outgoing))


class EarlyCancels:
    """Keeps them, and looks after them. Safe to share between tasks."""

    def __init__(
        self, database: Database, canceller: Canceller, hand_over: HandOver, *, rows_max: int = 1000
    ) -> None:
        self._database = database
        self._canceller = canceller
        self._hand_over = hand_over
        self._rows_max = rows_max

    async def keep(self, cancels: Sequence[tuple[Delivery, CancelRequested]]) -> list[bool]:
        """Store cancels in one statement; tell which of them are kept. The others have to be refused now.

        Once it returned they may be acknowledged. Raises Unavailable.
        """
        packed = [_packed(delivery) for delivery, _ in cancels]
        fit = [
            (delivery, cancel, messages)
            for (delivery, cancel), messages in zip(cancels, packed, strict=True)
            if _keep_seconds(delivery) > 0
        ]
        if not fit:
            return [False] * len(cancels)
        count = await self._database.fetchval(
            "SELECT turnstile.keep_early_cancels($1, $2, $3, $4, $5, $6, $7)",
            [cancel.execution_id for _, cancel, _ in fit],
            [cancel.idempotency_key for _, cancel, _ in fit],
            [cancel.reason for _, cancel, _ in fit],
            [_message_key(delivery) for delivery, _, _ in fit],
            [messages for _, _, messages in fit],
            [_keep_seconds(delivery) for delivery, _, _ in fit],
            KEPT_MAX,
        )
        kept = {id(delivery) for delivery, _, _ in fit[:count]}
        return [id(delivery) in kept for delivery, _ in cancels]

    async def cancel_early(self) -> int:
        """Cancel what is known by now, and give up what was kept long enough."""
        return await self._cancel_known() + await self._give_up_overdue()

    async def _cancel_known(self) -> int:
        rows = await self._database.fetch("SELECT * FROM turnstile.known_early_cancels($1)", self._rows_max)
        if not rows:
            return 0
        cancelled = await self._canceller.cancel(
            [CancelRequested(execution_id=row["execution_id"], reason=row["reason"]) for row in rows]
        )
        # What another session holds is tried again at the next tick.
        await self._forget([row["id"] for place, row in enumerate(rows) if place not in cancelled.held])
        reached(CrashPoint.SWEPT)
        self._hand_over.announce_moves(cancelled.moves)
        # If this fails, the sweeps over ends and overdue stops tell it.
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await self._hand_over.tell(cancelled.messages)
        return len(rows)

    async def _give_up_overdue(self) -> int:
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.overdue_early_cancels($1, $2)", _LEASE_SECONDS, _GIVEN_UP_MAX
        )
        if not rows:
            return 0
        reached(CrashPoint.SWEPT)
        messages = [message for row in rows for message in _unpacked(row["messages"])]
        _, late = await asyncio.wait(self._hand_over.courier.post(messages), timeout=_TELL_SECONDS)
        if late:
            logger.debug("early_cancels_not_told", extra={"messages": len(late)})
            return 0
        await self._forget([row["id"] for row in rows])
        logger.info("early_cancels_given_up", extra={"code": Code.UNKNOWN_EXECUTION, "cancels": len(rows)})
        REFUSED.add(Code.UNKNOWN_EXECUTION, count=len(rows))
        DEAD_LETTERED.add(Code.UNKNOWN_EXECUTION, count=len(rows))
        return len(rows)

    async def _forget(self, ids: Sequence[int]) -> None:
        await self._database.fetch("SELECT turnstile.forget_early_cancels($1)", list(ids))


def _keep_seconds(delivery: Delivery) -> float:
    # Executors of older versions sent it round a delay queue, a second for each try.
    return max(0.0, float(KEEP_SECONDS - tries_of(delivery)))


def _message_key(delivery: Delivery) -> UUID | None:
    if not delivery.message_id:
        return None
    content = delivery.message_id.encode("utf-8", "surrogatepass") + b"\0" + delivery.body
    return UUID(bytes=hashlib.blake2b(content, digest_size=16).digest())


def _packed(delivery: Delivery) -> bytes:
    """Return what is to be published if the execution stays unknown."""
    answer = reply(delivery, ExecutionRejected(code=Code.UNKNOWN_EXECUTION, message=UNKNOWN))
    letter = dead_letter(delivery, Code.UNKNOWN_EXECUTION, UNKNOWN, app_id="executor")
    # Escaped throughout: neither U+0000 nor half a surrogate is anything to the database.
    return json.dumps([_fields(m) for m in (answer, letter) if m is not None]).encode("ascii")


def _fields(message: Outgoing) -> dict[str, Any]:
    at = message.timestamp
    return asdict(message) | {
        "body": b64encode(message.body).decode("ascii"),
        "timestamp": int(at.timestamp()) if isinstance(at, datetime) else at,
    }


def _unpacked(messages: bytes) -> list[Outgoing]:
    return [_message(stored) for stored in json.loads(messages)]


def _message(stored: dict[str, Any]) -> Outgoing:
    # An executor of a newer version may have stored more.
    known = {name: value for name, value in stored.items() if name in _OUTGOING_FIELDS}
    message = Outgoing(**known | {"body": b64decode(stored["body"])})
    headers = dict(message.headers or {})
    if DIED_AT_HEADER in headers:
        headers[DIED_AT_HEADER] = datetime.now(UTC).isoformat()
    return replace(message, headers=headers)
