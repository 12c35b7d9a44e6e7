"""Reads what waits and who holds, in queues and at gates: from the leader, whose memory decides (P10).

In: names, and where a page starts. Out: schemas. Raises Unavailable while no leader answers: rows have no
order, and counts that do not add up would be worse than none.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import asyncpg
from pydantic import BaseModel

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.fields import PRIORITIES, UNITS_MAX
from turnstile.common.schemas import GateUse, KeyStats, QueueStats, WaitingCounts, WaitingFor
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
from turnstile.executor.questions.explain import Bound, Bounds
from turnstile.executor.questions.protocol import (
    Answered,
    BoundsOf,
    PoolQueue,
    Question,
    QueueOf,
    ResourceQueue,
    Stats,
    Unanswered,
)
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

A = TypeVar("A")
M = TypeVar("M", bound=BaseModel)

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
                "why": waiting_for(found.stats.why),
                "gates": tuple(_shown(GateUse, each) for each in found.stats.gates),
                "by_key": tuple(_shown(KeyStats, each) for each in found.stats.by_key),
            }
        )

    async def bounds(self, refs: Sequence[str]) -> dict[str, Bounds]:
        """Return what keeps the executions of these actions waiting; nothing while no leader answers."""
        answer = await self._asker.ask(BoundsOf(action_refs=tuple(refs))) if refs else None
        return {each.action_ref: each for each in answer.body} if isinstance(answer, Answered) else {}

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
            items=[
                _shown(
                    QueuedExecution,
                    each,
                    created_at=created_at.get(each.id, instant(each.queued_at)),
                )
                for each in found.items
            ],
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
        return _shown(
            ResourceQueuePage,
            found,
            resource=found.name,
            capacity=capacity,
            free=None if capacity is None else max(capacity - found.held, 0),
            items=[_shown(WaitingForUnits, each) for each in found.items],
            holders=[_shown(ResourceHolder, each) for each in found.holders],
            next_cursor=None,
        )

    async def pool_queue(self, name: str, *, offset: int, limit: int) -> PoolQueuePage | None:
        """Return a pool with its holders and what waits for it, behind `offset` positions.

        None: there is no such pool. `next_cursor` is left to the caller.
        """
        found = await self._answer("pool", name, PoolQueue(name=name, offset=offset, limit=limit))
        if found is None:
            return None
        return _shown(
            PoolQueuePage,
            found,
            pool=found.name,
            items=[_shown(WaitingForWorker, each) for each in found.items],
            holders=[
                _shown(
                    PoolHolder,
                    each,
                    status="scheduled" if each.started_at is None else "running",
                    granted_at=instant(each.granted_at or 0.0),
                )
                for each in found.holders
            ],
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


def waiting_for(why: Iterable[tuple[Bound, int]]) -> tuple[WaitingFor, ...]:
    """Return what executions wait for as schemas."""
    return tuple(WaitingFor(count=count, **bound._asdict()) for bound, count in why)


def _unavailable(unanswered: Unanswered) -> Unavailable:
    return Unavailable(
        f"only the leader knows what waits: {unanswered.message}; repeat the request, or read what is "
        "stored: GET /api/v1/executions?status=queued"
    )


def _shown(model: type[M], value: object, **more: object) -> M:
    """Return a schema with the fields of a value of the leader: instants as such, a key of "" as null."""
    fields = dict(more)
    for name in model.model_fields:
        if name in more:
            continue
        found = getattr(value, "key" if name == "concurrency_key" else name)
        if name == "concurrency_key":
            found = found or None
        elif name.endswith("_at"):
            found = instant(found)
        fields[name] = found
    return model(**fields)


def _slot_holder(holder: protocol.SlotHolder, row: "Row | None") -> SlotHolder:
    run = None
    if row is not None:
        run = Run(
            started_at=row["started_at"], completed_at=row["completed_at"],
            timeout_seconds=row["timeout_seconds"], cancel_requested_at=row["cancel_requested_at"],
            cancel_reason=row["cancel_reason"], read_at=row["read_at"],
        )  # fmt: skip
    granted_at = holder.granted_at if holder.granted_at is not None else holder.passed_at
    return _shown(
        SlotHolder,
        holder,
        stopping=run is not None and run.asked_at() is not None,
        granted_at=instant(granted_at or 0.0),
        finished_at=None,
    )
