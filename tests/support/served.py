"""The HTTP API, called in the process, over a real database and a leader in this process.

The leader's broker is in memory: a test plays the workers (`Served.worker`, `Served.new_worker`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from tests.support.inbox import Installation, RunningLeader, ScriptedWorker
from tests.support.traffic import until
from turnstile.common.broker.publisher import Publisher
from turnstile.common.database import Database
from turnstile.executor.api.app import create_app
from turnstile.executor.api.parts import ApiParts
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.settings import ExecutorSettings

NO_BROKER = "amqp://127.0.0.1:1/"


@dataclass(slots=True, kw_only=True)
class Served:
    app: FastAPI
    http: httpx.AsyncClient
    database: Database
    installation: Installation
    leader: RunningLeader
    parts: dict[str, str | None]

    @property
    def worker(self) -> ScriptedWorker:
        """The worker that `join` lets join."""
        return self.leader.broker.worker

    def new_worker(self, name: str) -> ScriptedWorker:
        """Another worker; its `hello` lets it join."""
        return self.leader.broker.new_worker(name)

    def join(self, *, concurrency: int = 4, **fields: Any) -> None:
        """Let the worker join the pool `default`."""
        self.worker.hello(concurrency=concurrency, **fields)

    async def define(self, ref: str, **fields: Any) -> None:
        answer = await self.http.put(f"/api/v1/actions/{ref}", json=fields)
        assert answer.status_code in (200, 201), answer.text

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

    async def until_offered(self, *execution_ids: int) -> None:
        """Wait until the worker has been offered all of these."""
        await until(
            lambda: set(execution_ids) <= self.worker.offered.keys(),
            f"offers {execution_ids}",
            deadline_seconds=10,
        )

    async def until_status(self, execution_id: int, status: str) -> None:
        """Wait until the API shows this status."""

        async def has_status() -> bool:
            return bool((await self.get(f"/executions/{execution_id}"))["status"] == status)

        await until(has_status, f"{status} of {execution_id}", deadline_seconds=10)

    async def start(self, *execution_ids: int) -> None:
        """Let the worker start what it is offered."""
        await self.until_offered(*execution_ids)
        for each in execution_ids:
            self.worker.start(each)
        for each in execution_ids:
            await self.until_status(each, "running")

    async def run(self, execution_id: int, status: str = "completed", **fields: Any) -> None:
        """Let what the worker is offered run to its end."""
        await self.start(execution_id)
        if status == "failed":
            fields = {"error": ("Broken", "it broke")} | fields
        self.worker.end(execution_id, status, **fields)
        await self.until_status(execution_id, status)


class FixedHealth:
    def __init__(self, *, database: str | None = None, degraded: dict[str, str] | None = None) -> None:
        self.parts: dict[str, str | None] = {"database": database, "broker": None}
        self.faults = degraded or {}

    def readiness(self) -> dict[str, str | None]:
        return self.parts

    def degraded(self) -> dict[str, str]:
        return self.faults


@asynccontextmanager
async def serve(database_url: str, settings: ExecutorSettings | None = None) -> AsyncIterator[Served]:
    """Serve the API over this database, with a leader."""
    async with Installation(database_url) as installation:
        leader = installation.lead()
        database = Database(database_url, application_name="test", connections_max=6)
        await database.open()
        health = FixedHealth()
        settings = settings or ExecutorSettings()
        parts = ApiParts.over(
            settings,
            database,
            leader.asker(),
            inbox=installation.inbox,
            dead_letters=DeadLetters(database, Publisher(NO_BROKER, name="test")),
            health=health,
            stopping=asyncio.Event(),
        )
        app = create_app(settings, parts)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                yield Served(
                    app=app,
                    http=http,
                    database=database,
                    installation=installation,
                    leader=leader,
                    parts=health.parts,
                )
        finally:
            await database.close()
