"""Reads what waits and who holds, in queues and at gates: from the leader, whose memory decides (P10).

In: names, and where a page starts. Out: schemas. Raises Unavailable while no leader answers: rows have no
order, and counts that do not add up would be worse than none.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import asyncpg

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.fields import PRIORITIES, UNITS_MAX
from turnstile.common.schemas import KeyStats, QueueStats, WaitingCounts
from turnstile.executor.asking.asker import Asker
from turnstile.executor.queries.explained import instant
from turnstile.executor.queries.read_limiter import LimitedReader, ReadLimiter
from turnstile.executor.queries.schemas import (
    ActionQueuePage,
    PoolHolder,
    PoolQueuePage,
    QueuedExecution,
    ResourceHolder,
    ResourceQueuePage,
    SlotHolder,
    WaitingForUnits,
    WaitingForWorker,
)
from turnstile.executor.queries.stopping import Run
from turnstile.executor.questions import protocol
from turnstile.executor.questions.protocol import (
    GatePage,
    PoolQueue,
    Question,
    QueueOf,
    ResourceQueue,
    Stats,
    Unanswered,
    WaitingPlace,
)
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

A = TypeVar("A")


_STATEMENTS: Final = statements("queries/definitions.sql")


class QueueStart(NamedTuple):
    """A page of waiting executions begins behind this one, in the order of priorities and ids."""

    priority: int = PRIORITIES[0]
    id: int = 0


class QueueReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    def __init__(self, database: Database, limiter: ReadLimiter, asker: Asker) -> None:
        super().__init__(database, limiter)
        self._asker = asker

    async def queue_stats(self, ref: str) -> QueueStats | None:
        """Return the state of the queues of an action; None: there is no such action."""
        row = await self._row(_STATEMENTS["action"], ref)
        if row is None:
            return None
        answer = await self._asker.ask(Stats(action_refs=(ref,)))
        if isinstance(answer, Unanswered):
            raise _unavailable(answer)
        (found,) = answer.body.items
        if found.stats is None:
            return None
        fields = found.stats._asdict()
        del fields["delayed"]
        return QueueStats(
            **fields
            | {
                "action_id": row["id"],
                "action_ref": ref,
                "oldest_enqueued_at": instant(found.stats.oldest_enqueued_at),
                "last_updated": instant(answer.at),
                "waiting": WaitingCounts(**found.stats.waiting),
                "by_key": tuple(_of_key(*each) for each in found.stats.by_key),
            }
        )

    async def queue(
        self, ref: str, *, concurrency_key: str | None, start: QueueStart, limit: int
    ) -> tuple[ActionQueuePage, QueueStart | None] | None:
        """Return queued executions in order, slot holders, and where the next page starts.

        None: there is no such action.
        """
        found = await self._answer(
            "action", ref, QueueOf(action_ref=ref, key=concurrency_key, after=start, limit=limit)
        )
        if found is None:
            return None
        created = await self._rows(_STATEMENTS["created"], [each.id for each in found.items])
        held = await self._rows(_STATEMENTS["held"], [each.id for each in found.holders])
        created_at = {row["id"]: row["created_at"] for row in created}
        rows = {row["id"]: row for row in held}
        page = ActionQueuePage(
            action_ref=ref,
            items=[_queued(each, created_at.get(each.id)) for each in found.items],
            holders=[_slot_holder(each, rows.get(each.id)) for each in found.holders],
            next_cursor=None,
        )
        return page, None if found.next is None else QueueStart(*found.next)

    async def resource_queue(self, name: str, *, offset: int, limit: int) -> ResourceQueuePage | None:
        """Return a resource with its holders and what waits for it, behind `offset` positions.

        None: there is no such resource. `next_cursor` is left to the caller.
        """
        found = await self._answer("resource", name, ResourceQueue(name=name, offset=offset, limit=limit))
        if found is None:
            return None
        # A resource without a limit is never full.
        capacity = None if found.capacity > UNITS_MAX else found.capacity
        return ResourceQueuePage(
            resource=found.name,
            capacity=capacity,
            paused=found.paused,
            order=found.order,
            held=found.held,
            held_waiting=found.held_waiting,
            free=None if capacity is None else max(capacity - found.held, 0),
            waiting=found.waiting,
            items=[_waiting_for_units(each) for each in found.items],
            holders=list(_unit_holders(found)),
            next_cursor=None,
        )

    async def pool_queue(self, name: str, *, offset: int, limit: int) -> PoolQueuePage | None:
        """Return a pool with its holders and what waits for it, behind `offset` positions.

        None: there is no such pool. `next_cursor` is left to the caller.
        """
        found = await self._answer("pool", name, PoolQueue(name=name, offset=offset, limit=limit))
        if found is None:
            return None
        return PoolQueuePage(
            pool=found.name,
            capacity=found.capacity,
            paused=found.paused,
            order=found.order,
            held=found.held,
            waiting=found.waiting,
            items=[_waiting_for_worker(each) for each in found.items],
            holders=list(_pool_holders(found)),
            next_cursor=None,
        )

    async def _answer(self, kind: str, name: str, question: Question[A | None]) -> A | None:
        """Ask about a definition; None: there is none, which the rows know also without a leader."""
        if await self._row(_STATEMENTS["is_defined"], kind, name) is None:
            return None
        answer = await self._asker.ask(question)
        if isinstance(answer, Unanswered):
            raise _unavailable(answer)
        return answer.body


def _unavailable(unanswered: Unanswered) -> Unavailable:
    return Unavailable(
        f"only the leader knows what waits: {unanswered.message}; repeat the request, or read what is "
        "stored: GET /api/v1/executions?status=queued"
    )


def _of_key(key: str, queue_length: int, active_count: int, held_waiting: int) -> KeyStats:
    return KeyStats(
        concurrency_key=key,
        queue_length=queue_length,
        active_count=active_count,
        held_waiting=held_waiting,
    )


def _queued(place: WaitingPlace, created_at: datetime | None) -> QueuedExecution:
    queued_at = instant(place.queued_at)
    return QueuedExecution(
        id=place.id,
        position=place.position,
        concurrency_key=place.key or None,
        priority=place.priority,
        created_at=created_at or queued_at,
        queued_at=queued_at,
    )


def _slot_holder(holder: protocol.SlotHolder, row: "Row | None") -> SlotHolder:
    run = None
    if row is not None:
        run = Run(
            started_at=row["started_at"], completed_at=row["completed_at"],
            timeout_seconds=row["timeout_seconds"], cancel_requested_at=row["cancel_requested_at"],
            cancel_reason=row["cancel_reason"], read_at=row["read_at"],
        )  # fmt: skip
    granted_at = holder.granted_at if holder.granted_at is not None else holder.passed_at
    return SlotHolder(
        id=holder.id,
        concurrency_key=holder.key or None,
        attempt=holder.attempt,
        status=holder.status,
        stopping=run is not None and run.asked_at() is not None,
        worker_id=holder.worker_id,
        granted_at=instant(granted_at or 0.0),
        started_at=instant(holder.started_at),
        finished_at=None,
    )


def _waiting_for_units(place: WaitingPlace) -> WaitingForUnits:
    return WaitingForUnits(
        id=place.id,
        position=place.position,
        action_ref=place.action_ref,
        concurrency_key=place.key or None,
        priority=place.priority,
        units=place.units,
        arrived_at=instant(place.arrived_at),
        queued_at=instant(place.queued_at),
    )


def _waiting_for_worker(place: WaitingPlace) -> WaitingForWorker:
    return WaitingForWorker(
        id=place.id,
        position=place.position,
        action_ref=place.action_ref,
        concurrency_key=place.key or None,
        priority=place.priority,
        queued_at=instant(place.queued_at),
    )


def _unit_holders(page: GatePage) -> Iterable[ResourceHolder]:
    for each in page.holders:
        yield ResourceHolder(
            id=each.id,
            action_ref=each.action_ref,
            concurrency_key=each.key or None,
            units=each.units,
            status=each.status,
            passed_at=instant(each.passed_at),
        )


def _pool_holders(page: GatePage) -> Iterable[PoolHolder]:
    for each in page.holders:
        yield PoolHolder(
            id=each.id,
            action_ref=each.action_ref,
            concurrency_key=each.key or None,
            status="scheduled" if each.started_at is None else "running",
            worker_id=each.worker_id,
            granted_at=instant(each.granted_at or 0.0),
        )
