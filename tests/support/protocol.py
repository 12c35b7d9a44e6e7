"""The protocol's statements on one connection, through the code that the services call them with.

A test that needs two sessions opens two of these; a test that opens a transaction decides when it commits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

import asyncpg
from asyncpg.transaction import Transaction

from tests.support.traffic import until
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId, WorkerId
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import request_hash
from turnstile.executor.results import (
    Accepted,
    Admission,
    Grants,
    Move,
    Rejected,
    Verdict,
    read_grant,
)
from turnstile.executor.slot_grants import QueueManager
from turnstile.worker.differences import Difference
from turnstile.worker.protocol import Claim, Finished, Offer, Report, WorkerProtocol
from turnstile.worker.protocol import Verdict as WorkerVerdict

T = TypeVar("T")
U = TypeVar("U")
if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection
CREATE_QUEUES = """
WITH created AS (
    INSERT INTO action_queue (action_id, concurrency_key, max_concurrent, paused) {} RETURNING id
)
INSERT INTO queue_state (queue_id, version, depth, held, head_id, total_enqueued, total_completed, updated_at)
SELECT id, 1, 0, 0, 0, 0, 0, now() FROM created
"""
"""Creates the empty queues that a query selects: action, key, limit, pause."""
COUNT_QUEUES = """
INSERT INTO queue_state (queue_id, version, depth, held, head_id, total_enqueued, total_completed, updated_at)
SELECT q.id, coalesce(v.version, 0) + 1, coalesce(w.n, 0), coalesce(s.n, 0), 0, coalesce(e.n, 0),
       coalesce(e.n, 0) - coalesce(w.n, 0) - coalesce(s.n, 0), now()
FROM action_queue q
LEFT JOIN queue_state v ON v.queue_id = q.id
LEFT JOIN (SELECT line_id, count(*) AS n FROM waiting GROUP BY 1) w ON w.line_id = q.id
LEFT JOIN (SELECT queue_id, count(*) AS n FROM slot GROUP BY 1) s ON s.queue_id = q.id
LEFT JOIN (SELECT queue_id, count(*) AS n FROM execution GROUP BY 1) e ON e.queue_id = q.id;
DELETE FROM queue_state v
WHERE EXISTS (SELECT FROM queue_state n WHERE n.queue_id = v.queue_id AND n.version > v.version)
"""
"""Counts the rows of all queues, after a test inserted queues or executions by itself."""
WORKER = "worker-1"
OTHER_WORKER = "worker-2"


class OneConnection(Database):
    """A database whose every statement runs on one connection, in the transaction that is open on it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("postgresql://localhost/one_connection", application_name="test")
        self.connection = connection

    async def _run(self, statement: str, ask: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await ask(self.connection)
        except asyncpg.SerializationError:
            # Repeated as by the services, unless the test's own transaction has failed.
            if self.connection.is_in_transaction():
                raise
            return await ask(self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The outcome of a settle."""

    count: int
    early: set[int]
    unknown: set[int]
    granted: list[int]


def request(ref: str = "a", *, delivery_key: Any = None, **fields: Any) -> Admission:
    requested = ExecutionRequested(action_ref=ref, **fields)
    return Admission.of(requested, request_hash(requested), delivery_key=delivery_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """The outcome of a reclaim."""

    returned: list[int]
    ended: dict[int, str]
    granted: list[int]


class Protocol:
    """Thin: each method is one statement, with the arguments that a test needs."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.database = OneConnection(connection)
        self.queue_manager = QueueManager(self.database, lock_timeout_seconds=None)
        self.executor = self.queue_manager.protocol

    def transaction(self) -> Transaction:
        return self.connection.transaction()

    @asynccontextmanager
    async def undone(self) -> AsyncIterator[None]:
        """Roll back what happens here."""
        transaction = self.transaction()
        await transaction.start()
        try:
            yield
        finally:
            await transaction.rollback()

    # --- actions, workers

    async def put(self, ref: str = "a", **fields: Any) -> list[int]:
        """Define an action; returns the granted ids."""
        return ids_in(await self.queue_manager.put_actions([ActionDefinition(ref=ref, **fields)]))

    async def register_actions(self, *definitions: ActionDefinition) -> list[Difference]:
        return await self.record().register_actions(definitions)

    async def register(
        self, worker: str = WORKER, *, lease_seconds: float = 600.0, pools: Sequence[str] = ("default",),
        serves: Sequence[str] | None = None, concurrency: int = 4,
    ) -> None:  # fmt: skip
        await self.connection.execute(
            "SELECT turnstile.register_worker($1, 'test', 'localhost', 1, $2, $5, $3, $4)",
            worker, list(pools), lease_seconds, None if serves is None else list(serves), concurrency,
        )  # fmt: skip

    async def lose_lease(self, worker: str = WORKER) -> None:
        """Expire the lease."""
        await self.connection.execute(
            "UPDATE worker_lease SET expires_at = clock_timestamp() - interval '1 s' WHERE worker_id = $1",
            worker,
        )

    async def renew(self, worker: str = WORKER) -> tuple[bool, bool]:
        row = await self.row("SELECT * FROM turnstile.renew($1, 600)", worker)
        return row["alive"], row["draining"]

    # --- executor

    async def admit(self, *admissions: Admission) -> tuple[list[Verdict], Grants]:
        return await self.queue_manager.admit(admissions)

    async def submit(self, ref: str = "a", count: int = 1, **fields: Any) -> list[int]:
        """Admit `count` equal requests in one batch; returns their ids."""
        verdicts, _ = await self.admit(*(request(ref, **fields) for _ in range(count)))
        return [accepted(verdict).execution_id for verdict in verdicts]

    async def start(self, count: int = 1, ref: str = "a", **definition: Any) -> list[int]:
        """Define an action, submit and claim; returns the running ids."""
        await self.put(ref, **definition)
        ids = await self.submit(ref, count)
        assert await self.claim_verdicts(*ids) == ["claimed"] * count
        return ids

    async def grant(self, *queue_ids: int) -> Grants:
        return await self.queue_manager.grant([QueueId(i) for i in queue_ids])

    async def settle(self, *completions: tuple[int, int]) -> Freed:
        """Settle these attempts by the messages that report their current status."""
        rows = await self.connection.fetch(
            "SELECT id, status::text FROM execution WHERE id = ANY ($1) AND completed_at IS NOT NULL",
            [i for i, _ in completions],
        )
        ends = {row["id"]: Status(row["status"]) for row in rows}
        return await self.settle_as(*((i, attempt, ends.get(i)) for i, attempt in completions))

    async def settle_as(self, *messages: tuple[int, int, Status | None]) -> Freed:
        """Settle by messages with these terminal statuses; None: a message about the slot only."""
        settled = await self.queue_manager.settle(
            [(ExecutionId(i), Attempt(attempt), end) for i, attempt, end in messages]
        )
        return Freed(
            count=settled.count,
            early=set(settled.early),
            unknown=set(settled.unknown),
            granted=ids_in(settled.grants),
        )

    async def cancel(self, *execution_ids: int, reason: str | None = None) -> list[Move]:
        moves, held = await self.queue_manager.cancel([(ExecutionId(i), reason) for i in execution_ids])
        assert not held
        return moves

    # --- worker

    def record(self, worker: str = WORKER, *, serves: Sequence[str] | None = None) -> WorkerProtocol:
        return WorkerProtocol(self.database, WorkerId(worker), served_refs=serves)

    async def claim(
        self, *execution_ids: int, attempt: int = 1, worker: str = WORKER
    ) -> list[Claim | WorkerVerdict]:
        answers = await self.record(worker).exchange([offer(i, attempt) for i in execution_ids])
        return [answer for answer in answers if not isinstance(answer, Finished)]

    async def claim_verdicts(self, *execution_ids: int, attempt: int = 1, worker: str = WORKER) -> list[str]:
        claims = await self.claim(*execution_ids, attempt=attempt, worker=worker)
        return ["claimed" if isinstance(c, Claim) else c.value for c in claims]

    async def finish(
        self, *execution_ids: int, attempt: int = 1, worker: str = WORKER,
        status: Status = Status.COMPLETED, retry_delay_seconds: float | None = None, log: str | None = None,
        log_start: int = 0, result_json: str | None = None,
    ) -> list[Finished]:  # fmt: skip
        failed = status is not Status.COMPLETED
        reports = [
            Report(
                execution_id=ExecutionId(i), attempt=Attempt(attempt), status=status,
                result_json=result_json, error_type="Broken" if failed else None,
                error_message="it broke" if failed else None, log=log, log_start=log_start,
                retry_delay_seconds=retry_delay_seconds,
            )
            for i in execution_ids
        ]  # fmt: skip
        answers = await self.record(worker).exchange(reports)
        return [answer for answer in answers if isinstance(answer, Finished)]

    async def finish_verdict(self, execution_id: int, **fields: Any) -> str:
        (finished,) = await self.finish(execution_id, **fields)
        return finished.verdict.value

    async def hand_back(self, *execution_ids: int, attempt: int = 1, worker: str = WORKER) -> set[int]:
        return set(await self.record(worker).hand_back([offer(i, attempt) for i in execution_ids]))

    async def run(self, *execution_ids: int, attempt: int = 1, worker: str = WORKER) -> None:
        """Claim and complete granted executions; the slots stay held."""
        verdicts = await self.claim_verdicts(*execution_ids, attempt=attempt, worker=worker)
        assert verdicts == ["claimed"] * len(verdicts)
        for finished in await self.finish(*execution_ids, attempt=attempt, worker=worker):
            assert finished.verdict is WorkerVerdict.APPLIED

    # --- watchdog

    async def wake_due(self, limit: int = 1000) -> tuple[list[Move], Grants]:
        return await self.executor.wake_due(limit)

    async def expire_due(self, limit: int = 1000) -> list[Move]:
        return await self.executor.expire_due(limit)

    async def due_pools(self, timeout_seconds: float = 0.0) -> dict[str, int]:
        """Return the pools with due offers, and the number of messages that each queue should hold."""
        return {row["pool"]: row["offered"] for row in await self.executor.due_pools(timeout_seconds)}

    async def missing_offers(
        self,
        ready: Mapping[str, int],
        *,
        timeout_seconds: float = 0.0,
        limit: int = 1000,
        looked_at: datetime | None = None,
        held: int | None = None,
    ) -> list[int]:
        """Sweep as if the broker had so many ready messages in these pools, which may carry `held` offers.

        With `looked_at` as a sweep that read the pools at that instant.
        """
        due = [row for row in await self.executor.due_pools(timeout_seconds) if row["pool"] in ready]
        if not due:
            return []
        rows = await self.connection.fetch(
            "SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6, $7)",
            timeout_seconds,
            looked_at or due[0]["looked_at"],
            [row["pool"] for row in due],
            [row["offered"] for row in due],
            [ready[row["pool"]] for row in due],
            limit,
            None if held is None else [held] * len(due),
        )
        return sorted(read_grant(row).execution_id for row in rows)

    async def due_completions(self, timeout_seconds: float = 0.0, limit: int = 1000) -> list[int]:
        return sorted(await self.executor.due_completions(timeout_seconds, limit))

    async def grantable_queues(self, after_id: int = 0, queues_max: int = 20_000) -> list[int]:
        queue_ids, _ = await self.executor.grantable_queues(QueueId(after_id), queues_max)
        return [*queue_ids]

    async def reclaim(self, limit: int = 1000, as_of: datetime | None = None) -> Reclaimed:
        """Reclaim from workers whose lease ended before `as_of`, or before now."""
        returned, ended, grants = await self.executor.reclaim(limit, as_of or await self.executor.clock())
        return Reclaimed(
            returned=[move.execution_id for move in returned],
            ended={move.execution_id: move.status.value for move in ended},
            granted=ids_in(grants),
        )

    async def due_cancels(
        self, timeout_seconds: float = -1.0, limit: int = 1000
    ) -> list[tuple[int, int, str]]:
        return await self.executor.due_cancels(timeout_seconds, limit)

    async def cancels_published(self, *cancels: tuple[int, int, str]) -> None:
        await self.executor.cancels_published(cancels)

    async def stop_overdue(
        self, grace_seconds: float = 0.0, *, cancels_max: int = 2, limit: int = 1000
    ) -> tuple[list[Move], list[Move]]:
        """Return the attempts that need a cancel message, and those that were ended."""
        return await self.executor.stop_overdue(grace_seconds, cancels_max, limit)

    async def delete_idle_queues(
        self, idle_seconds: float = 0.0, *, after_id: int = 0, limit: int = 1000
    ) -> int:
        deleted, _ = await self.executor.delete_idle_queues(after_id, idle_seconds, limit)
        return deleted

    async def drifted_queues(self, after_id: int = 0, limit: int = 1000) -> list[int]:
        queue_ids, _ = await self.executor.drifted_queues(QueueId(after_id), limit)
        return [*queue_ids]

    async def repair(self, *queue_ids: int) -> tuple[list[int], list[int]]:
        """Return the repaired queues and the granted ids."""
        repaired, grants = await self.executor.repair_queues([QueueId(i) for i in queue_ids])
        return [queue["queue_id"] for queue in repaired], ids_in(grants)

    async def roll_out(self, limit: int = 1000) -> list[tuple[int, int, list[int]]]:
        """Roll changed limits out to the next queues; returns read, changed and granted for each action."""
        rolled = []
        for action_id in await self.executor.rollouts_due(1000):
            read, changed, grants = await self.executor.roll_out(action_id, limit)
            rolled.append((read, changed, ids_in(grants)))
        return rolled

    # --- tables

    async def status(self, execution_id: int) -> str:
        return str((await self.execution(execution_id))["status"])

    async def statuses(self, *execution_ids: int) -> list[str]:
        return [await self.status(i) for i in execution_ids]

    async def execution(self, execution_id: int) -> asyncpg.Record:
        return await self.row("SELECT * FROM turnstile.current_execution WHERE id = $1", execution_id)

    async def waiting(self) -> list[int]:
        return await self.column("SELECT turnstile.id_of_place(place) FROM waiting ORDER BY line_id, place")

    async def held(self) -> list[int]:
        return await self.column("SELECT execution_id FROM slot ORDER BY execution_id")

    async def unpublished(self) -> list[int]:
        return await self.column("SELECT execution_id FROM unpublished_completion ORDER BY 1")

    async def attempts(self, execution_id: int) -> list[tuple[int, str, str]]:
        rows = await self.connection.fetch(
            "SELECT attempt, worker_id, outcome FROM turnstile.ended_attempt"
            " WHERE execution_id = $1 ORDER BY 1",
            execution_id,
        )
        return [(row["attempt"], row["worker_id"], row["outcome"]) for row in rows]

    async def queue(self, ref: str = "a", key: str = "") -> asyncpg.Record:
        return await self.row(
            "SELECT q.* FROM turnstile.current_queue q JOIN action a ON a.id = q.action_id"
            " WHERE a.ref = $1 AND q.concurrency_key = $2", ref, key,
        )  # fmt: skip

    async def until(self, query: str, *arguments: object) -> None:
        """Wait until the value of a query is true."""
        await until(lambda: self.connection.fetchval(query, *arguments), query)

    async def row(self, query: str, *arguments: object) -> asyncpg.Record:
        row = await self.connection.fetchrow(query, *arguments)
        assert row is not None
        return row

    async def column(self, query: str, *arguments: object) -> list[Any]:
        return [row[0] for row in await self.connection.fetch(query, *arguments)]


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[Protocol]:
    """Open one session."""
    connection = await asyncpg.connect(database_url)
    try:
        yield Protocol(connection)
    finally:
        await connection.close(timeout=5)


def offer(execution_id: int, attempt: int) -> Offer:
    return Offer(execution_id=ExecutionId(execution_id), attempt=Attempt(attempt))


def accepted(verdict: Verdict) -> Accepted:
    assert isinstance(verdict, Accepted), verdict
    return verdict


def rejected(verdict: Verdict) -> Rejected:
    assert isinstance(verdict, Rejected), verdict
    return verdict


def new_worker() -> str:
    return str(uuid4())


def ids_in(grants: Grants) -> list[int]:
    return [grant.execution_id for grant in grants.granted]


async def blocked(protocol: Protocol, watcher: Protocol, statement: Awaitable[T]) -> "asyncio.Task[T]":
    """Start `statement` on `protocol` and return once it waits for a lock."""
    task = asyncio.ensure_future(statement)
    pid = protocol.connection.get_server_pid()
    async with asyncio.timeout(10):
        while not await watcher.column("SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted", pid):
            assert not task.done(), f"did not wait: {task}"
            await asyncio.sleep(0.005)
    return task


async def in_turn(
    first: Protocol, second: Protocol, earlier: Awaitable[T], later: Awaitable[U]
) -> tuple[T, U]:
    """Run `earlier` in a transaction of `first`, which commits only when `later` on `second` waits for it."""
    async with first.transaction():
        result = await earlier
        waiting = await blocked(second, first, later)
    return result, await waiting
