"""The protocol's statements on one connection, through the very code that the services call them with.

A test that needs two sessions opens two of these; one that opens a transaction decides when it commits.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
from asyncpg.transaction import Transaction

from tests.integration.executor.reading import Connection, ids_in
from tests.integration.executor.sweeping import Sweeping
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId, WorkerId
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import request_hash
from turnstile.executor.decisions import Accepted, Admission, Grants, Move, Rejected, Verdict
from turnstile.executor.queue_manager import QueueManager
from turnstile.worker.record import Claim, Difference, Finished, Offer, Record, Report
from turnstile.worker.record import Verdict as Said

T = TypeVar("T")
WORKER = "worker-1"
OTHER_WORKER = "worker-2"


class OneConnection(Database):
    """A link whose every statement runs on one connection, in whatever transaction is open on it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("postgresql://localhost/one_connection", application_name="test")
        self.connection = connection

    async def _run(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await ask(self.connection)
        except asyncpg.SerializationError:
            # As the services do; but not where a test's own transaction has failed with it.
            if self.connection.is_in_transaction():
                raise
            return await ask(self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What a settle did, in plain numbers."""

    count: int
    early: set[int]
    unknown: set[int]
    granted: list[int]


def request(ref: str = "a", *, delivery_key: Any = None, **fields: Any) -> Admission:
    asked = ExecutionRequested(action_ref=ref, **fields)
    return Admission.of(asked, request_hash(asked), delivery_key=delivery_key)


class Protocol(Sweeping):
    """Thin: each method is one statement, with the arguments that a test has an opinion on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.database = OneConnection(connection)
        self.queue_manager = QueueManager(self.database, lock_timeout_seconds=None)

    def transaction(self) -> Transaction:
        return self.connection.transaction()

    # --- actions, workers -----------------------------------------------------------------------------

    async def put(self, ref: str = "a", **fields: Any) -> list[int]:
        """Define an action; returns what that started."""
        return ids_in(await self.queue_manager.put_actions([ActionDefinition(ref=ref, **fields)]))

    async def register_actions(self, *definitions: ActionDefinition) -> list[Difference]:
        return await self.record().register_actions(definitions)

    async def register(
        self, worker: str = WORKER, *, lease_seconds: float = 600.0, pools: Sequence[str] = ("default",),
        serves: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        await self.connection.execute(
            "SELECT turnstile.register_worker($1, 'test', 'localhost', 1, $2, 4, $3, $4)",
            worker, list(pools), lease_seconds, None if serves is None else list(serves),
        )  # fmt: skip

    async def lose_lease(self, worker: str = WORKER) -> None:
        """Let the lease be over, as if its time had passed."""
        await self.connection.execute(
            "UPDATE worker SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = $1", worker
        )

    async def renew(self, worker: str = WORKER) -> tuple[bool, bool]:
        row = await self.connection.fetchrow("SELECT * FROM turnstile.renew($1, 600)", worker)
        assert row is not None
        return row["alive"], row["draining"]

    # --- executor -------------------------------------------------------------------------------------

    async def admit(self, *admissions: Admission) -> tuple[list[Verdict], Grants]:
        return await self.queue_manager.admit(admissions)

    async def submit(self, ref: str = "a", count: int = 1, **fields: Any) -> list[int]:
        """Admit `count` equal requests in one batch; returns their ids."""
        verdicts, _ = await self.admit(*(request(ref, **fields) for _ in range(count)))
        return [accepted(verdict).execution_id for verdict in verdicts]

    async def grant(self, *queue_ids: int) -> Grants:
        return await self.queue_manager.grant([QueueId(i) for i in queue_ids])

    async def settle(self, *completions: tuple[int, int]) -> Freed:
        """Settle these attempts by the messages that the record would tell of them now."""
        rows = await self.connection.fetch(
            "SELECT id, status::text FROM execution WHERE id = ANY ($1) AND completed_at IS NOT NULL",
            [i for i, _ in completions],
        )
        ends = {row["id"]: Status(row["status"]) for row in rows}
        return await self.settle_as(*((i, attempt, ends.get(i)) for i, attempt in completions))

    async def settle_as(self, *messages: tuple[int, int, Status | None]) -> Freed:
        """Settle by messages that tell these ends; None: a slot message, which tells none."""
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

    # --- worker ---------------------------------------------------------------------------------------

    def record(self, worker: str = WORKER, *, serves: Sequence[str] | None = None) -> Record:
        return Record(self.database, WorkerId(worker), served_refs=serves)

    async def claim(self, *execution_ids: int, attempt: int = 1, worker: str = WORKER) -> list[Claim | Said]:
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
        """Claim and complete what was granted; the slots stay held."""
        verdicts = await self.claim_verdicts(*execution_ids, attempt=attempt, worker=worker)
        assert verdicts == ["claimed"] * len(verdicts)
        for finished in await self.finish(*execution_ids, attempt=attempt, worker=worker):
            assert finished.verdict is Said.APPLIED


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
