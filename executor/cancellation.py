"""Cancels executions: ends what has not started, and publishes cancel messages for what runs.

In: an execution id or an idempotency key, from a message or from HTTP. Out, after the commit: a completion
for each execution that ended at once (P4), and an `execution.cancel` to the worker of each running one. The
SQL function `cancel` decides every race. A cancel of an execution that is not known yet is stored, in bounded
number, until the execution is known or for about 30 s; so a flood of them passes the request queue once (P9).
"""

import asyncio
import hashlib
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import DIED_AT_HEADER, cancel_message, dead_letter, reply, tries_of
from turnstile.common.messages import CancelRequested, Error, ExecutionCancel, ExecutionRejected
from turnstile.executor.callers import Caller
from turnstile.executor.completions import completion_of
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import DEAD_LETTERED, REFUSED
from turnstile.executor.protocol import EarlyCancel, ExecutorProtocol
from turnstile.executor.results import Move
from turnstile.executor.slot_grants import QueueManager

logger = logging.getLogger(__name__)

EARLY_CANCELS_MAX: Final = 10_000
"""Upper bound on stored cancels; further ones are refused at once."""
EARLY_CANCEL_SECONDS: Final = 30
"""How long a cancel waits for its execution."""
UNKNOWN: Final = "no such execution; check the id or the key"
_REJECTED_MAX: Final = 500
"""Per tick and executor."""
_LEASE_SECONDS: Final = 30.0
_PUBLISH_SECONDS: Final = 1.0
"""Longest wait for the broker, so that the next sweep is not late. The rows remain until then."""
_OUTGOING_FIELDS: Final = frozenset(field.name for field in fields(Outgoing))


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledBatch:
    """Result of a batch of cancel requests."""

    moves: list[Move]
    """Executions that this batch ended."""
    found: list[Move]
    """One for each execution that exists: ended before, ended now, or running."""
    messages: list[Outgoing]
    """To be published before the requests are acknowledged."""
    unknown: frozenset[int]
    """Indexes, in the batch, of requests that name no execution."""
    blocked: frozenset[int]
    """Indexes of requests that were not decided: another session holds the execution or its queue."""


class Canceller:
    """Cancels executions in any status."""

    def __init__(self, queue_manager: QueueManager) -> None:
        self._queue_manager = queue_manager

    async def cancel(
        self, requests: Sequence[CancelRequested], *, changed_by: Caller | None = None
    ) -> CancelledBatch:
        """End what waits, and return the messages for the workers of what runs. Raises Unavailable.

        `changed_by` is the operator; None for cancel messages, which carry no name.
        """
        keys = [r.idempotency_key for r in requests if r.idempotency_key is not None]
        by_key = await self._queue_manager.protocol.ids_by_key(keys) if keys else {}
        ids = [_execution_id(r, by_key) for r in requests]
        known = [(i, r.reason) for i, r in zip(ids, requests, strict=True) if i is not None]
        found, blocked = (
            await self._queue_manager.cancel(known, changed_by=changed_by)
            if known
            else ([], frozenset[ExecutionId]())
        )
        found_ids = {move.execution_id for move in found}
        ended = [m for m in found if m.status is Status.CANCELLED and not is_terminal(m.previous_status)]
        running = [m for m in found if m.status is Status.RUNNING]
        reasons = dict(known)
        errors = [Error(type="Cancelled", message=reasons[move.execution_id] or "") for move in ended]
        return CancelledBatch(
            moves=ended,
            found=found,
            messages=[completion_of(move, error) for move, error in zip(ended, errors, strict=True)]
            + [cancel_of_move(move) for move in running],
            unknown=frozenset(p for p, i in enumerate(ids) if i not in found_ids and i not in blocked),
            blocked=frozenset(p for p, i in enumerate(ids) if i in blocked),
        )


def cancel_of_move(move: Move) -> Outgoing:
    """Return the cancel message for the worker that held this attempt."""
    assert move.worker_id is not None, "a running execution has a worker"
    return cancel_of(move.execution_id, move.attempt, worker_id=move.worker_id)


def cancel_of(execution_id: int, attempt: int, *, worker_id: str) -> Outgoing:
    """Return the cancel message for this attempt and worker."""
    return cancel_message(ExecutionCancel(execution_id=execution_id, attempt=attempt), worker_id=worker_id)


class EarlyCancels:
    """Stores cancels of unknown executions, and sweeps over them. Safe to share between tasks."""

    def __init__(
        self, database: Database, canceller: Canceller, dispatcher: Dispatcher, *, rows_max: int = 1000
    ) -> None:
        self._protocol = ExecutorProtocol(database)
        self._canceller = canceller
        self._dispatcher = dispatcher
        self._rows_max = rows_max

    async def store(self, cancels: Sequence[tuple[Delivery, CancelRequested]]) -> list[bool]:
        """Store cancels in one statement; return for each whether it is stored. Others are to be refused.

        Stored cancels may be acknowledged. Raises Unavailable.
        """
        storable = [
            (delivery, cancel, seconds)
            for delivery, cancel in cancels
            if (seconds := _storage_seconds(delivery)) > 0
        ]
        if not storable:
            return [False] * len(cancels)
        count = await self._protocol.store_early_cancels(
            [
                EarlyCancel(
                    cancel.execution_id,
                    cancel.idempotency_key,
                    cancel.reason,
                    _message_key(delivery),
                    _packed(delivery),
                    seconds,
                )
                for delivery, cancel, seconds in storable
            ],
            EARLY_CANCELS_MAX,
        )
        stored = {id(delivery) for delivery, _, _ in storable[:count]}
        return [id(delivery) in stored for delivery, _ in cancels]

    async def cancel_early(self) -> int:
        """Cancel executions that are known now, and reject cancels whose execution is still unknown."""
        return await self._cancel_known() + await self._reject_overdue()

    async def _cancel_known(self) -> int:
        rows = await self._protocol.known_early_cancels(self._rows_max)
        if not rows:
            return 0
        cancelled = await self._canceller.cancel(
            [CancelRequested(execution_id=row["execution_id"], reason=row["reason"]) for row in rows]
        )
        # Blocked ones are retried at the next tick.
        await self._protocol.delete_early_cancels(
            [row["id"] for index, row in enumerate(rows) if index not in cancelled.blocked]
        )
        reached(CrashPoint.SWEPT, "cancel_early")
        self._dispatcher.announce_moves(cancelled.moves)
        # If this fails, the sweeps over completions and overdue attempts publish it.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PUBLISH_SECONDS):
                await self._dispatcher.publish(cancelled.messages)
        return len(rows)

    async def _reject_overdue(self) -> int:
        rows = await self._protocol.overdue_early_cancels(_LEASE_SECONDS, _REJECTED_MAX)
        if not rows:
            return 0
        reached(CrashPoint.SWEPT, "cancel_early")
        messages = [message for row in rows for message in _unpacked(row["messages"])]
        _, late = await asyncio.wait(self._dispatcher.best_effort.post(messages), timeout=_PUBLISH_SECONDS)
        if late:
            logger.debug("early_cancels_not_published", extra={"messages": len(late)})
            return 0
        await self._protocol.delete_early_cancels([row["id"] for row in rows])
        logger.info("early_cancels_given_up", extra={"code": Code.UNKNOWN_EXECUTION, "cancels": len(rows)})
        REFUSED.add(Code.UNKNOWN_EXECUTION, count=len(rows))
        DEAD_LETTERED.add(Code.UNKNOWN_EXECUTION, count=len(rows))
        return len(rows)


def _execution_id(request: CancelRequested, by_key: dict[str, ExecutionId]) -> ExecutionId | None:
    if request.idempotency_key is not None:
        return by_key.get(request.idempotency_key)
    return None if request.execution_id is None else ExecutionId(request.execution_id)


def _storage_seconds(delivery: Delivery) -> float:
    # Executors of older versions sent it to a delay queue, for a second per try.
    return max(0.0, float(EARLY_CANCEL_SECONDS - tries_of(delivery)))


def _message_key(delivery: Delivery) -> UUID | None:
    if not delivery.message_id:
        return None
    content = delivery.message_id.encode("utf-8", "surrogatepass") + b"\0" + delivery.body
    return UUID(bytes=hashlib.blake2b(content, digest_size=16).digest())


def _packed(delivery: Delivery) -> bytes:
    """Return the messages that are published if the execution stays unknown."""
    answer = reply(delivery, ExecutionRejected(code=Code.UNKNOWN_EXECUTION, message=UNKNOWN))
    letter = dead_letter(delivery, Code.UNKNOWN_EXECUTION, UNKNOWN, app_id="executor")
    # ASCII: the database stores neither U+0000 nor a lone surrogate.
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
    # An executor of a newer version may have stored more fields.
    known = {name: value for name, value in stored.items() if name in _OUTGOING_FIELDS}
    message = Outgoing(**known | {"body": b64decode(stored["body"])})
    headers = dict(message.headers or {})
    if DIED_AT_HEADER in headers:
        headers[DIED_AT_HEADER] = datetime.now(UTC).isoformat()
    return replace(message, headers=headers)
