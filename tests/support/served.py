"""The HTTP API over a real database, called in the process; what it would tell over the broker is kept."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.broker.publisher import Publisher
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.api import ApiServices, create_app
from turnstile.executor.dead_letters import DeadLetters
from turnstile.executor.decisions import Admission, Deletion, Grant, Move, Retried, Verdict
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.settings import ExecutorSettings

WORKER = "worker-1"
NO_BROKER = "amqp://127.0.0.1:1/"


@dataclass(slots=True, kw_only=True)
class Served:
    http: httpx.AsyncClient
    database: Database
    queue_manager: QueueManager
    granted: list[Grant] = field(default_factory=list)
    parts: dict[str, str | None] = field(default_factory=lambda: {"database": None, "broker": None})

    async def define(self, ref: str, **fields: Any) -> None:
        await self.queue_manager.put_actions([ActionDefinition(ref=ref, **fields)])

    async def submit(self, ref: str, **fields: Any) -> dict[str, Any]:
        answer = await self.http.post("/api/v1/executions", json={"action_ref": ref, **fields})
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())

    async def submit_many(self, ref: str, count: int, **fields: Any) -> list[int]:
        body = [{"action_ref": ref, **fields} for _ in range(count)]
        answer = await self.http.post("/api/v1/executions", json=body)
        assert answer.status_code == 202, answer.text
        return [item["id"] for item in answer.json()["items"]]

    async def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        answer = await self.http.get(f"/api/v1{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def register_worker(self, worker_id: str = WORKER, *, lease_seconds: float = 60.0) -> None:
        await self.database.fetch(
            "SELECT turnstile.register_worker($1, 'test', 'localhost', 1, '{default}', 4, $2)",
            worker_id,
            lease_seconds,
        )

    async def claim(self, execution_id: int, attempt: int = 1) -> None:
        row = await self.database.fetchrow(
            "SELECT verdict FROM turnstile.claim($1, $2, $3)", WORKER, [execution_id], [attempt]
        )
        assert row is not None
        assert row["verdict"] == "claimed"

    async def finish(
        self, execution_id: int, attempt: int = 1, *, status: str = "completed", result: str | None = None
    ) -> None:
        error = None if status == "completed" else "Broken"
        row = await self.database.fetchrow(
            "SELECT verdict FROM turnstile.finish($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            WORKER,
            [execution_id],
            [attempt],
            [status],
            [result],
            [error],
            [error and "it broke"],
            [None],
            [None],
        )
        assert row is not None
        assert row["verdict"] == "applied"

    async def settle(self, execution_id: int, attempt: int = 1) -> None:
        status = await self.database.fetchval(
            "SELECT status::text FROM execution WHERE id = $1 AND completed_at IS NOT NULL", execution_id
        )
        end = None if status is None else Status(status)
        await self.queue_manager.settle([(ExecutionId(execution_id), Attempt(attempt), end)])


@asynccontextmanager
async def serve(database_url: str, settings: ExecutorSettings | None = None) -> AsyncIterator[Served]:
    """Serve the API over this database."""
    database = Database(database_url, application_name="test", connections_max=6)
    await database.open()
    queue_manager = QueueManager(database)
    served: Served

    async def submit(admissions: Sequence[Admission]) -> list[Verdict]:
        verdicts, grants = await queue_manager.admit(admissions)
        served.granted.extend(grants.granted)
        return verdicts

    async def put_actions(definitions: Sequence[ActionDefinition], changed_by: str) -> None:
        grants = await queue_manager.put_actions(definitions, changed_by=changed_by)
        served.granted.extend(grants.granted)

    async def delete_action(ref: str, cancel_max: int, changed_by: str) -> Deletion | None:
        return await queue_manager.delete_action(
            ref, cancel_max=cancel_max, reason="deleted", changed_by=changed_by
        )

    async def cancel(execution_ids: Sequence[ExecutionId], reason: str | None) -> list[Move]:
        moves, _ = await queue_manager.cancel([(execution_id, reason) for execution_id in execution_ids])
        return moves

    async def retry(
        requests: Sequence[tuple[ExecutionId, str | None]], traceparent: str | None
    ) -> list[Retried]:
        retried, grants = await queue_manager.retry(requests, traceparent=traceparent)
        served.granted.extend(grants.granted)
        return retried

    async def drain_worker(worker_id: str) -> bool:
        return bool(await database.fetchval("SELECT turnstile.drain_worker($1)", worker_id))

    app = create_app(
        ApiServices(
            settings=settings or ExecutorSettings(),
            database=database,
            queue_manager=queue_manager,
            submit=submit,
            put_actions=put_actions,
            delete_action=delete_action,
            cancel=cancel,
            retry=retry,
            drain_worker=drain_worker,
            dead_letters=DeadLetters(database, Publisher(NO_BROKER, name="test")),
            readiness=lambda: served.parts,
        )
    )
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            served = Served(http=http, database=database, queue_manager=queue_manager)
            yield served
    finally:
        await database.close()
