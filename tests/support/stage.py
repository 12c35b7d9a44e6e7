"""A running system with everything that a test asks it: submit, look, cancel, wait, listen."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.tap import Heard, Tap, tapped
from tests.support.traffic import until
from turnstile.common.messages import COMPLETED, STATUS_CHANGED

ACTIONS = "tests.e2e.actions"


def numbers_in(file: Path) -> list[int]:
    """Return the process numbers that an action wrote; none before it has."""
    return [int(number) for number in file.read_text().split()] if file.exists() else []


def still_there(pids: Sequence[int]) -> list[int]:
    """Return those of the processes that exist."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def repairs_of_counters(system: System) -> list[str]:
    """Return what the watchdog found wrong in the counters: what heals by itself was wrong all the same."""
    lines = [line for executor in system.executors for line in executor.log.read_text().splitlines()]
    return [line for line in lines if "counters_repaired" in line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One system, its record, its API, and what it tells the world."""

    system: System
    history: History
    http: httpx.AsyncClient
    tap: Tap

    @property
    def amqp_url(self) -> str:
        return self.system.amqp_url

    async def start_worker(self, **settings: str) -> Service:
        return await self.system.start_worker(ACTIONS, **settings)

    async def put(self, ref: str, **fields: Any) -> None:
        answer = await self.http.put(f"/actions/{ref}", json=fields)
        assert answer.status_code in (200, 201), answer.text

    async def patch(self, ref: str, **fields: Any) -> None:
        answer = await self.http.patch(f"/actions/{ref}", json=fields)
        assert answer.status_code == 200, answer.text

    async def submit(self, ref: str, **fields: Any) -> int:
        (execution_id,) = await self.submit_many([{"action_ref": ref, **fields}])
        return execution_id

    async def submit_many(self, bodies: Sequence[Mapping[str, Any]]) -> list[int]:
        answer = await self.http.post("/executions", json=list(bodies))
        assert answer.status_code == 202, answer.text
        return [item["id"] for item in answer.json()["items"]]

    async def get(self, execution_id: int) -> dict[str, Any]:
        answer = await self.http.get(f"/executions/{execution_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def stats(self, ref: str) -> dict[str, Any]:
        return dict((await self.http.get(f"/actions/{ref}/queue-stats")).json())

    async def cancel(self, *execution_ids: int, reason: str | None = None) -> None:
        for execution_id in execution_ids:
            answer = await self.http.post(f"/executions/{execution_id}/cancel", json={"reason": reason})
            assert answer.status_code == 202, answer.text

    async def status(self, execution_id: int) -> str:
        found = await self.history.value("SELECT status::text FROM execution WHERE id = $1", execution_id)
        return str(found)

    async def stands(self, execution_id: int, *statuses: str, deadline_seconds: float = 20.0) -> None:
        """Wait until an execution has one of these statuses."""

        async def does() -> bool:
            return await self.status(execution_id) in statuses

        await until(does, f"{execution_id} is {statuses}", deadline_seconds=deadline_seconds)

    async def ended(self, *execution_ids: int, deadline_seconds: float = 30.0) -> list[str]:
        """Wait until these have ended and hold no slot; return how they ended."""

        async def have() -> bool:
            return bool(
                await self.history.value(
                    """
                    SELECT count(*) = cardinality($1::bigint[]) FROM execution e
                    WHERE e.id = ANY ($1) AND e.completed_at IS NOT NULL
                      AND NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id)
                      AND NOT EXISTS (SELECT FROM untold_end u WHERE u.execution_id = e.id)
                    """,
                    list(execution_ids),
                )
            )

        await until(have, f"the ends of {execution_ids[:10]}", deadline_seconds=deadline_seconds)
        rows = await self.history.rows(
            "SELECT e.status::text FROM unnest($1::bigint[]) WITH ORDINALITY c(id, ord)"
            " JOIN execution e ON e.id = c.id ORDER BY c.ord",
            list(execution_ids),
        )
        return [row["status"] for row in rows]

    async def attempts(self, execution_id: int) -> list[tuple[int, str]]:
        rows = await self.history.rows(
            "SELECT attempt, outcome FROM attempt WHERE execution_id = $1 ORDER BY attempt", execution_id
        )
        return [(row["attempt"], row["outcome"]) for row in rows]

    async def told(self, execution_id: int) -> list[Heard]:
        """Wait for the completion of an execution and return all that were heard so far."""
        await self.tap.until(
            lambda: bool(self._completions(execution_id)), f"the completion of {execution_id}"
        )
        return self._completions(execution_id)

    def changes(self, execution_id: int) -> list[str]:
        """Return the statuses that were announced, in the order in which they were.

        Several processes announce them, so what was heard first need not have been first.
        """
        heard = [message.body for message in self.tap.about(STATUS_CHANGED, execution_id)]
        heard.sort(key=lambda body: datetime.fromisoformat(str(body["changed_at"])))
        return [str(body["status"]) for body in heard]

    def _completions(self, execution_id: int) -> list[Heard]:
        return self.tap.about(COMPLETED, execution_id)


@asynccontextmanager
async def staged(database_url: str, amqp_url: str, **options: Any) -> AsyncIterator[Stage]:
    """Run a system with the options of `running`, and listen to all that it tells."""
    async with (
        running(database_url, amqp_url, **options) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http,
        tapped(amqp_url) as tap,
    ):
        yield Stage(system=system, history=history, http=http, tap=tap)
        assert repairs_of_counters(system) == []
