"""Lines of any depth, and turns over them: settle what ran (timed), then run what was granted and refill.

In: a database session. Out: the seconds of one settle-and-grant, by whatever way of saying it is passed in.
Every turn leaves the lines as deep as they were, so all turns of a run are alike.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import asyncpg

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]

Attempt: TypeAlias = tuple[int, int]
"""Execution id and number of the attempt."""
Settle: TypeAlias = Callable[[Sequence[int], Sequence[int]], Awaitable[Sequence[Attempt]]]
"""Settles attempts and returns those that were granted in their place."""

_WORKER: Final = "bench"

_REGISTER: Final = "SELECT turnstile.register_worker($1, 'bench', 'here', 1, ARRAY['default'], 1, 3600)"
_QUEUES: Final = """
WITH defined AS (
    INSERT INTO action (ref, max_concurrent)
    SELECT $1 || n, $3::integer FROM generate_series(1, $2::integer) n
    RETURNING id
)
INSERT INTO action_queue (action_id, max_concurrent) SELECT d.id, $3::integer FROM defined d RETURNING id
"""
_FILL: Final = """
WITH arrived AS (
    INSERT INTO execution (action_id, queue_id, status, request_hash, delivery_key, queued_at)
    SELECT q.action_id, q.id, 'queued', gen_random_uuid(), gen_random_uuid(), clock_timestamp()
    FROM generate_series(1, $2::integer) n CROSS JOIN action_queue q
    WHERE q.id = ANY ($1::bigint[]) ORDER BY n, q.id
    RETURNING id, queue_id
),
in_line AS (INSERT INTO waiting (queue_id, execution_id) SELECT a.queue_id, a.id FROM arrived a)
UPDATE action_queue SET depth = depth + $2::integer, total_enqueued = total_enqueued + $2::integer
WHERE id = ANY ($1::bigint[])
"""
_REFILL: Final = """
WITH arrived AS (
    INSERT INTO execution (action_id, queue_id, status, request_hash, delivery_key, queued_at)
    SELECT e.action_id, e.queue_id, 'queued', gen_random_uuid(), gen_random_uuid(), clock_timestamp()
    FROM execution e WHERE e.id = ANY ($1::bigint[]) ORDER BY e.id
    RETURNING id, queue_id
),
in_line AS (INSERT INTO waiting (queue_id, execution_id) SELECT a.queue_id, a.id FROM arrived a)
UPDATE action_queue q SET depth = q.depth + n.newcomers, total_enqueued = q.total_enqueued + n.newcomers
FROM (SELECT a.queue_id, count(*) AS newcomers FROM arrived a GROUP BY a.queue_id) n WHERE q.id = n.queue_id
"""
_FINISH: Final = """
SELECT verdict FROM turnstile.finish(
    $1, $2::bigint[], $3::integer[], array_fill('completed'::text, $4), array_fill('1'::jsonb, $4),
    array_fill(NULL::text, $4), array_fill(NULL::text, $4), array_fill(NULL::text, $4),
    array_fill(NULL::double precision, $4))
"""


class Lines:
    """Queues with every slot held by an attempt that has finished, and a line behind each."""

    def __init__(self, session: Session, held: Iterable[Attempt]) -> None:
        self._session = session
        self._held = deque(held)

    @classmethod
    async def create(cls, session: Session, *, name: str, queues: int, limit: int, depth: int) -> Self:
        """Create `queues` actions of this limit with `depth` waiting in each."""
        await session.fetch(_REGISTER, _WORKER)
        rows = await session.fetch(_QUEUES, f"{name}.", queues, limit)
        queue_ids = [row["id"] for row in rows]
        await session.execute(_FILL, queue_ids, depth + limit)
        granted = await session.fetchval("SELECT granted FROM turnstile.grant_slots($1)", queue_ids)
        lines = cls(session, [(grant["execution_id"], grant["attempt"]) for grant in granted])
        await lines._run(list(lines._held))
        return lines

    async def turn(self, settle: Settle, count: int = 1) -> float:
        """Settle `count` attempts, return how many seconds that took, and prepare the next turn."""
        settled = [self._held.popleft() for _ in range(count)]
        ids, attempts = [each[0] for each in settled], [each[1] for each in settled]
        began = time.perf_counter()
        granted = await settle(ids, attempts)
        seconds = time.perf_counter() - began
        assert len(granted) == count, "every freed slot goes to the head of its line"
        await self._run(granted)
        await self._session.execute(_REFILL, ids)
        self._held.extend(granted)
        return seconds

    async def _run(self, granted: Sequence[Attempt]) -> None:
        ids, attempts = [each[0] for each in granted], [each[1] for each in granted]
        claims = await self._session.fetch(
            "SELECT verdict FROM turnstile.claim($1, $2, $3)", _WORKER, ids, attempts
        )
        ends = await self._session.fetch(_FINISH, _WORKER, ids, attempts, [len(ids)])
        assert {row["verdict"] for row in claims} == {"claimed"}
        assert {row["verdict"] for row in ends} == {"applied"}


def by_function(session: Session) -> Settle:
    """Settle in one call of the protocol's function: how the executor does it."""

    async def settle(execution_ids: Sequence[int], attempts: Sequence[int]) -> list[Attempt]:
        row = await session.fetchrow("SELECT * FROM turnstile.settle($1, $2)", execution_ids, attempts)
        assert row is not None
        return [(grant["execution_id"], grant["attempt"]) for grant in row["granted"] or ()]

    return settle
