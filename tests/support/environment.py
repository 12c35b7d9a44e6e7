"""A running system, and the operations of a test on it: submit, read, cancel, wait, listen."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import httpx

from tests.support.history import History, history_of
from tests.support.listener import Listener, Received, listening
from tests.support.processes import CERTIFICATES, Service, System, running
from tests.support.silent_worker import silent_worker
from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED
from turnstile.common.database import Database
from turnstile.executor.api_tokens import Role
from turnstile.executor.callers import DIRECTLY
from turnstile.executor.stored_tokens import TokenStore

ACTIONS = "tests.e2e.actions"
_ENDED = """
SELECT count(*) = cardinality($1::bigint[]) FROM ledger.execution e
WHERE e.id = ANY ($1) AND e.completed_at IS NOT NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One system, its history, its API, and what it publishes."""

    system: System
    history: History
    http: httpx.AsyncClient
    listener: Listener
    silent: set[str] = field(default_factory=set)
    """Pools with a silent worker."""
    silent_workers: ExitStack = field(default_factory=ExitStack)

    @property
    def amqp_url(self) -> str:
        """The vhost of the system."""
        return self.system.amqp_url

    @property
    def executor(self) -> Service:
        """The first executor."""
        return self.system.executors[0]

    @property
    def worker(self) -> Service:
        """The first worker."""
        return self.system.workers[0]

    async def start_worker(self, **settings: str) -> Service:
        """Start one more worker for the actions of the end-to-end tests."""
        return await self.system.start_worker(ACTIONS, **settings)

    async def start_silent_worker(self, pool: str) -> None:
        """Let what is granted in this pool stay `scheduled` until it is cancelled; repeating it is fine."""
        if pool not in self.silent:
            self.silent.add(pool)
            worker = silent_worker(self.amqp_url, f"silent-{pool}", pool)
            await asyncio.to_thread(self.silent_workers.enter_context, worker)

    async def create_token(self, **fields: Any) -> str:
        """Create a token in the database, where that of the settings may not."""
        database = Database(self.system.database_url, application_name="test")
        await database.open()
        try:
            _, token = await TokenStore(database).create(
                fields["name"],
                Role[fields["role"].upper()],
                fields.get("scope"),
                seconds=fields.get("seconds"),
                changed_by=DIRECTLY,
            )
        finally:
            await database.close()
        return token

    async def put(self, ref: str, **fields: Any) -> None:
        """Define an action."""
        answer = await self.http.put(f"/actions/{ref}", json=fields)
        assert answer.status_code in (200, 201), answer.text

    async def patch(self, ref: str, **fields: Any) -> None:
        """Change an action."""
        answer = await self.http.patch(f"/actions/{ref}", json=fields)
        assert answer.status_code == 200, answer.text

    async def submit(self, ref: str, **fields: Any) -> int:
        """Submit one execution; return its id."""
        (execution_id,) = await self.submit_many([{"action_ref": ref, **fields}])
        return execution_id

    async def submit_many(self, bodies: Sequence[Mapping[str, Any]]) -> list[int]:
        """Submit a list; return the ids."""
        answer = await self.http.post("/executions", json=list(bodies))
        assert answer.status_code == 202, answer.text
        return [item["id"] for item in answer.json()["items"]]

    async def get(self, execution_id: int) -> dict[str, Any]:
        """Return an execution as the API shows it."""
        answer = await self.http.get(f"/executions/{execution_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def stats(self, ref: str) -> dict[str, Any]:
        """Return the queue statistics of an action."""
        return dict((await self.http.get(f"/actions/{ref}/queue-stats")).json())

    async def cancel(self, *execution_ids: int, reason: str | None = None) -> None:
        """Cancel executions over HTTP."""
        for execution_id in execution_ids:
            answer = await self.http.post(f"/executions/{execution_id}/cancel", json={"reason": reason})
            assert answer.status_code == 202, answer.text

    async def status(self, execution_id: int) -> str:
        """Return the status in the database."""
        query = "SELECT status::text FROM ledger.current_execution WHERE id = $1"
        return str(await self.history.value(query, execution_id))

    async def until_status(self, execution_id: int, *statuses: str) -> None:
        """Wait until an execution has one of these statuses."""
        query = "SELECT status::text = ANY ($2) FROM ledger.current_execution WHERE id = $1"
        await self.history.until(query, execution_id, list(statuses))

    async def until_running(self, ids: Sequence[int], *, attempt: int | None = None) -> None:
        """Wait until exactly these executions run, all in this attempt if given."""
        query = """
            SELECT coalesce(array_agg(id ORDER BY id), '{}') = $1::bigint[] AND
                   coalesce(bool_and(attempt = $2), true)
            FROM ledger.current_execution WHERE status = 'running'
        """
        await self.history.until(query, list(ids), attempt)

    async def ended(self, *execution_ids: int, deadline_seconds: float = 30.0) -> list[str]:
        """Wait until these have ended and hold no slot; return their statuses."""
        await self.history.until(_ENDED, list(execution_ids), deadline_seconds=deadline_seconds)
        rows = await self.history.rows(
            "SELECT e.status::text FROM unnest($1::bigint[]) WITH ORDINALITY c(id, ord)"
            " JOIN ledger.execution e ON e.id = c.id ORDER BY c.ord",
            list(execution_ids),
        )
        return [row["status"] for row in rows]

    async def attempts(self, execution_id: int) -> list[tuple[int, str]]:
        """Return number and outcome of each attempt."""
        return await self.history.attempts(execution_id)

    async def worker_of(self, execution_id: int) -> str:
        """Return the name of the worker that ran the last attempt."""
        query = """
            SELECT w.name FROM ledger.current_execution e
            JOIN ledger.worker w ON w.worker_id = e.worker_id WHERE e.id = $1
        """
        return str(await self.history.value(query, execution_id))

    async def completions(self, execution_id: int) -> list[Received]:
        """Wait for a completion of an execution; return all of them."""
        await self.listener.until(
            lambda: bool(self.listener.about(EXECUTION_COMPLETED, execution_id)),
            f"the completion of {execution_id}",
        )
        return self.listener.about(EXECUTION_COMPLETED, execution_id)

    async def status_events(self, execution_id: int, count: int) -> list[Received]:
        """Wait for so many status events of an execution; return all of them."""
        about = partial(self.listener.about, EXECUTION_STATUS_CHANGED, execution_id)
        await self.listener.until(lambda: len(about()) >= count, f"{count} status events of {execution_id}")
        return about()

    async def announced(self, execution_id: int, count: int) -> list[str]:
        """Wait for so many statuses; return all, by their instants: several processes publish them."""
        bodies = [message.body for message in await self.status_events(execution_id, count)]
        bodies.sort(key=lambda body: datetime.fromisoformat(str(body["changed_at"])))
        return [str(body["status"]) for body in bodies]

    async def stop_running(self) -> None:
        """Cancel everything that has not ended."""
        rows = await self.history.rows("SELECT id FROM ledger.unfinished ORDER BY id DESC")
        for row in rows:
            await self.http.post(f"/executions/{row['id']}/cancel")
        await self.ended(*(row["id"] for row in rows))


@asynccontextmanager
async def running_environment(database_url: str, amqp_url: str, **options: Any) -> AsyncIterator[Environment]:
    """Run a system with the options of `running`, and listen to it; at the end the audit must be clean."""
    async with (
        running(database_url, amqp_url, **options) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30, verify=CERTIFICATES) as http,
        listening(amqp_url) as listener,
    ):
        env = Environment(system=system, history=history, http=http, listener=listener)
        with env.silent_workers:
            yield env


async def until_logged(service: Service, text: str) -> None:
    """Wait until a service has logged this text."""
    await until(
        lambda: text in service.log.read_text(), f"{text} in the log of {service.name}", deadline_seconds=20
    )


StartEnvironment: TypeAlias = Callable[..., AbstractAsyncContextManager[Environment]]
"""`running_environment` on the database and the vhost of one test."""
