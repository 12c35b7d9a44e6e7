"""One executor and one worker, with their record: executions are submitted, cancelled and waited for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.brokers import ready_messages
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import until

POOL_QUEUE = "worker.default"
EARLY = "acknowledged_early"
LATE = "given_back_late"
ONE_PLACE = {
    "TURNSTILE_WORKER_CONCURRENCY": "1",
    "TURNSTILE_ACKNOWLEDGE_AFTER": "500ms",
    # What is not taken stays where it is: no second offer hides a first one that a worker sits on.
    "TURNSTILE_DISPATCH_TIMEOUT": "1h",
}


class Scene:
    """A running system with its record and its API."""

    def __init__(self, system: System, history: History, http: httpx.AsyncClient) -> None:
        self.system = system
        self.history = history
        self._http = http

    async def submit(self, ref: str, **parameters: Any) -> int:
        """Submit one execution and return its id."""
        answer = await self._http.post("/executions", json={"action_ref": ref, "parameters": parameters})
        execution_id: int = answer.json()["id"]
        return execution_id

    async def change(self, ref: str, **fields: Any) -> None:
        """Change the definition of an action."""
        assert (await self._http.patch(f"/actions/{ref}", json=fields)).status_code == 200

    async def cancel(self, execution_id: int) -> None:
        """Cancel it, and wait until it is over."""
        assert (await self._http.post(f"/executions/{execution_id}/cancel")).status_code == 202
        await self.until_status(execution_id, "cancelled")

    async def until_status(self, execution_id: int, status: str) -> None:
        """Wait until it has come to that state."""

        async def is_there() -> bool:
            found = await self.history.value("SELECT status FROM execution WHERE id = $1", execution_id)
            return bool(found == status)

        await until(is_there, f"execution {execution_id} is {status}", deadline_seconds=20)

    async def worker_of(self, execution_id: int) -> str:
        """Return the name of the worker that ran its last attempt."""
        query = "SELECT w.name FROM execution e JOIN worker w ON w.id = e.worker_id WHERE e.id = $1"
        name: str = await self.history.value(query, execution_id)
        return name

    async def attempts(self, execution_id: int) -> int:
        """Return how many attempts of it have been claimed."""
        query = "SELECT count(*) FROM attempt WHERE execution_id = $1"
        count: int = await self.history.value(query, execution_id)
        return count

    async def until_ready(self, count: int, queue: str = POOL_QUEUE) -> None:
        """Wait until so many offers wait in the queue of the pool, taken by nobody."""

        async def is_so() -> bool:
            return await ready_messages(self.system.amqp_url, queue) == count

        await until(is_so, f"{count} offers wait in {queue}", deadline_seconds=20)


@asynccontextmanager
async def playing(
    database_url: str, amqp_url: str, settings: dict[str, str], **first_worker: str
) -> AsyncIterator[Scene]:
    """Run one executor and one worker, which may have settings of its own."""
    async with (
        running(database_url, amqp_url, workers=0, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=20) as http,
    ):
        await system.start_worker("tests.e2e.actions", **first_worker)
        yield Scene(system, history, http)


async def until_logged(service: Service, event: str) -> None:
    async def is_logged() -> bool:
        return event in service.log.read_text()

    await until(is_logged, f"{event} in the log of {service.name}", deadline_seconds=20)
