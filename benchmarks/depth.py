"""Depth: the cost of one settle and grant, by the length of the queue.

Each step settles a finished attempt, which is timed, then runs the granted one and adds an execution, so that
the length of the queue stays the same. The steps of the queues alternate; nothing else runs.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Final, Self, TypeAlias, TypeVar

import asyncpg

from benchmarks.client import database_session
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes

_AIM_RATIO: Final = 1.2
_AIMED_DEPTH_MAX: Final = 100_000

Attempt: TypeAlias = tuple[int, int]
"""Execution id and number of the attempt."""

_WORKER: Final = "bench"

_REGISTER: Final = "SELECT turnstile.register_worker($1, 'bench', 'here', 1, ARRAY['default'], 1, 3600)"
_CREATE: Final = """
WITH defined AS (INSERT INTO action (ref, max_concurrent) VALUES ($1, 1) RETURNING id),
created AS (INSERT INTO action_queue (action_id, max_concurrent) SELECT d.id, 1 FROM defined d RETURNING id)
INSERT INTO queue_state (queue_id, version, depth, held, head_id, total_enqueued, total_completed, updated_at)
SELECT c.id, 1, 0, 0, 0, 0, 0, clock_timestamp() FROM created c RETURNING queue_id
"""
_ASSIGN_POOL: Final = "SELECT turnstile.assign_pools(ARRAY(SELECT action_id FROM action_queue WHERE id = $1))"
_FILL: Final = """
WITH arrived AS (
    INSERT INTO execution (action_id, queue_id, status, request_hash, delivery_key, queued_at)
    SELECT q.action_id, q.id, 'queued', gen_random_uuid(), gen_random_uuid(), clock_timestamp()
    FROM generate_series(1, $2::integer) CROSS JOIN action_queue q WHERE q.id = $1::bigint
    RETURNING id, queue_id
),
inserted AS (INSERT INTO waiting (line_id, place) SELECT a.queue_id, a.id FROM arrived a)
UPDATE queue_state SET depth = depth + $2::integer, total_enqueued = total_enqueued + $2::integer
WHERE queue_id = $1
"""
_GRANT: Final = "SELECT granted, more_queue_ids FROM turnstile.grant_slots($1)"
_SETTLE: Final = "SELECT granted FROM turnstile.settle($1, $2)"
_CLAIM: Final = "SELECT verdict FROM turnstile.claim($1, $2, $3)"
_FINISH: Final = """
SELECT verdict FROM turnstile.finish(
    $1, $2, $3, ARRAY['completed'], ARRAY['1'::jsonb],
    ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::double precision])
"""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Settle and grant in queues of several lengths, first bulk-loaded without statistics, then after VACUUM.

    The query plans must depend neither on statistics nor on the length.
    """
    rows: list[Row] = []
    async with (
        servers.deployment("depth") as deployment,
        database_session(deployment.database_url) as session,
    ):
        for table in ("execution", "waiting"):
            await session.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        kinds = {depth: (await FilledQueue.create(session, depth=depth)).turn for depth in sizes.depths}
        for state, statement in (
            ("bulk-loaded, no statistics", "CHECKPOINT"),
            ("after VACUUM ANALYZE", "VACUUM ANALYZE"),
        ):
            await session.execute(statement)
            rows += _depth_rows(state, await interleaved_medians(kinds, sizes.turns))
    return [
        Section(
            title="depth: one settle and grant, by queue length",
            columns=tuple(f"{depth:,}" for depth in sizes.depths),
            rows=tuple(rows),
            note=f"medians of {sizes.turns} turns each, interleaved",
        )
    ]


def _depth_rows(state: str, seconds: dict[int, float]) -> list[Row]:
    fastest = min(seconds.values())
    # Compared with the fastest: a plan that reads the history is slow for the short queue with the newest
    # ids.
    aim = Aim(at_most=_AIM_RATIO, columns=tuple(f"{d:,}" for d in seconds if d <= _AIMED_DEPTH_MAX))
    return [
        Row(name=state, unit="µs", cells={f"{depth:,}": 1e6 * each for depth, each in seconds.items()}),
        Row(
            name="ratio to the fastest",
            cells={f"{depth:,}": each / fastest for depth, each in seconds.items()},
            aims=(aim,),
        ),
    ]


class FilledQueue:
    """A queue of limit 1 in which a finished attempt holds the slot and executions wait."""

    def __init__(self, session: "asyncpg.Connection[asyncpg.Record]", queue_id: int) -> None:
        self._session = session
        self._queue_id = queue_id
        self._held: Attempt = (0, 0)

    @classmethod
    async def create(cls, session: "asyncpg.Connection[asyncpg.Record]", *, depth: int) -> Self:
        """Create an action whose queue has this length."""
        return await cls.filled(session, await session.fetchval(_CREATE, f"depth{depth}"), depth=depth)

    @classmethod
    async def filled(
        cls, session: "asyncpg.Connection[asyncpg.Record]", queue_id: int, *, depth: int
    ) -> Self:
        """Fill an empty queue, and run the first execution that is granted."""
        await session.fetch(_REGISTER, _WORKER)
        await session.fetch(_ASSIGN_POOL, queue_id)
        queue = cls(session, queue_id)
        await session.execute(_FILL, queue_id, depth + 1)
        await queue._run(await queue.grant())
        return queue

    async def grant(self) -> list[asyncpg.Record]:
        """Grant what can be granted, as the executor does after a change."""
        granted: list[asyncpg.Record] = []
        while True:
            found = await self._session.fetchrow(_GRANT, [self._queue_id])
            assert found is not None
            granted += found["granted"] or []
            if not found["more_queue_ids"]:
                return granted

    async def turn(self) -> float:
        """Settle the held attempt as the executor does, return the seconds, and prepare the next turn."""
        execution_id, attempt = self._held
        began = time.perf_counter()
        granted = await self._session.fetchval(_SETTLE, [execution_id], [attempt])
        seconds = time.perf_counter() - began
        await self._run(granted)
        await self._session.execute(_FILL, self._queue_id, 1)
        return seconds

    async def _run(self, granted: Sequence[asyncpg.Record]) -> None:
        """Claim and finish the attempt that was granted."""
        (grant,) = granted
        self._held = grant["execution_id"], grant["attempt"]
        attempt = [grant["execution_id"]], [grant["attempt"]]
        claimed = await self._session.fetchval(_CLAIM, _WORKER, *attempt)
        applied = await self._session.fetchval(_FINISH, _WORKER, *attempt)
        assert (claimed, applied) == ("claimed", "applied")


Kind = TypeVar("Kind")
Turn = Callable[[], Awaitable[float]]
"""Does one turn and returns the seconds of its timed part."""

_WARM_UP_TURNS: Final = 10


async def interleaved_medians(kinds: Mapping[Kind, Turn], turns: int) -> dict[Kind, float]:
    """Return the median seconds of each kind, in turn, so that disturbances affect all alike."""
    order = list(kinds)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in order}
    for number in range(_WARM_UP_TURNS + turns):
        for kind in order:
            took = await kinds[kind]()
            if number >= _WARM_UP_TURNS:
                seconds[kind].append(took)
        # The previous kind affects the caches of the next one.
        order.append(order.pop(0))
    return {kind: median(each) for kind, each in seconds.items()}
