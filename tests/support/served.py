"""The HTTP API over a real database, called in the process; grants are recorded instead of published."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.broker.publisher import Publisher
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId, QueueId
from turnstile.common.domain.states import Status
from turnstile.common.messages import StatusChanged
from turnstile.executor.api.app import create_app
from turnstile.executor.callers import Caller
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.operations import Operations, Submissions
from turnstile.executor.parameter_schemas import ParameterSchemas
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.results import Admission, Grant, Grants, Retried, Verdict
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager

WORKER = "worker-1"
NO_BROKER = "amqp://127.0.0.1:1/"


@dataclass(slots=True, kw_only=True)
class Served:
    http: httpx.AsyncClient
    database: Database
    queue_manager: QueueManager
    schemas: ParameterSchemas
    granted: list[Grant]
    parts: dict[str, str | None]

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

    async def pages(self, path: str, **parameters: Any) -> list[list[dict[str, Any]]]:
        """Follow the cursors of a list to its end; return the items of each page."""
        found: list[list[dict[str, Any]]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.get(path, **parameters, **cursor)
            found.append(page["items"])
            if page["next_cursor"] is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    async def register_worker(self, worker_id: str = WORKER, *, lease_seconds: float = 60.0) -> None:
        await self.database.fetch(
            "SELECT turnstile.register_worker($1, 'test', 'localhost', 1, '{default}', 4, $2)",
            worker_id,
            lease_seconds,
        )

    async def claim(self, execution_id: int, attempt: int = 1) -> None:
        verdict = await self.database.fetchval(
            "SELECT verdict FROM turnstile.claim($1, $2, $3)", WORKER, [execution_id], [attempt]
        )
        assert verdict == "claimed"

    async def run(self, execution_id: int, status: str = "completed") -> None:
        """Let a granted execution end and free its slot."""
        await self.claim(execution_id)
        await self.finish(execution_id, status=status)
        await self.settle(execution_id)

    async def finish(
        self, execution_id: int, attempt: int = 1, *, status: str = "completed", result: str | None = None
    ) -> None:
        error = None if status == "completed" else "Broken"
        verdict = await self.database.fetchval(
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
        assert verdict == "applied"

    async def settle(self, execution_id: int, attempt: int = 1) -> None:
        status = await self.database.fetchval(
            "SELECT status::text FROM execution WHERE id = $1 AND completed_at IS NOT NULL", execution_id
        )
        end = None if status is None else Status(status)
        await self.queue_manager.settle([(ExecutionId(execution_id), Attempt(attempt), end)])


class FixedHealth:
    def __init__(self, *, database: str | None = None, degraded: dict[str, str] | None = None) -> None:
        self.parts: dict[str, str | None] = {"database": database, "broker": None}
        self.faults = degraded or {}

    def readiness(self) -> dict[str, str | None]:
        return self.parts

    def degraded(self) -> dict[str, str]:
        return self.faults


class _Recorder(Dispatcher):
    """Records what was granted, and publishes nothing."""

    def __init__(self, queue_manager: QueueManager) -> None:
        publisher = Publisher(NO_BROKER, name="test")
        super().__init__(publisher, queue_manager, "quorum", publisher)
        self.recorded: list[Grant] = []
        self._rest: list[QueueId] = []

    async def grant_rest(self) -> None:
        """Grant where one statement granted its maximum, as the running dispatcher does."""
        while self._rest:
            queue_ids, self._rest = self._rest, []
            self.dispatch_in_background(await self._queue_manager.grant(queue_ids))

    def dispatch_in_background(self, grants: Grants) -> bool:
        self.recorded += grants.granted
        self._rest += grants.more_queue_ids
        return True

    def in_background(self, publishing: Coroutine[Any, Any, None], *, count: int) -> bool:
        publishing.close()
        return True

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        """Announce nothing."""


class _Operations(Operations):
    """Returns once all is granted."""

    def __init__(self, queue_manager: QueueManager, dispatcher: _Recorder) -> None:
        super().__init__(queue_manager, dispatcher)
        self._recorder = dispatcher

    async def admit(self, admissions: Sequence[Admission]) -> list[Verdict]:
        verdicts = await super().admit(admissions)
        await self._recorder.grant_rest()
        return verdicts

    async def retry(
        self,
        requests: Sequence[tuple[ExecutionId, str | None]],
        traceparent: str | None,
        changed_by: Caller,
    ) -> list[Retried]:
        retried = await super().retry(requests, traceparent, changed_by)
        await self._recorder.grant_rest()
        return retried


class _Submissions(Submissions):
    """Admits each call on its own."""

    async def submit_all(self, admissions: Sequence[Admission]) -> list[Verdict]:
        return list(await self._admit(admissions))


@asynccontextmanager
async def serve(database_url: str, settings: ExecutorSettings | None = None) -> AsyncIterator[Served]:
    """Serve the API over this database."""
    database = Database(database_url, application_name="test", connections_max=6)
    await database.open()
    schemas = ParameterSchemas(ExecutorProtocol(database))
    queue_manager = QueueManager(database, schemas=schemas)
    dispatcher = _Recorder(queue_manager)
    operations = _Operations(queue_manager, dispatcher)
    health = FixedHealth()
    chosen = settings or ExecutorSettings()
    app = create_app(
        settings=chosen,
        database=database,
        operations=operations,
        submissions=_Submissions(operations.admit, items_max=1),
        dead_letters=DeadLetters(database, Publisher(NO_BROKER, name="test")),
        health=health,
        stopping=asyncio.Event(),
    )
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Served(
                http=http,
                database=database,
                queue_manager=queue_manager,
                schemas=schemas,
                granted=dispatcher.recorded,
                parts=health.parts,
            )
    finally:
        await database.close()
