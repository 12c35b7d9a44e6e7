"""A system with a worker whose links to the two servers can be frozen, and runs that leave a trace."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx

from tests.e2e.ticking import COMMAND, Tick, ticks_in
from tests.support.cable import Cable, cable_to
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import until

ACTIONS = "tests.e2e.ticking"
KINDS = ("async", "child", "command")
SHORT_LEASE = {
    "TURNSTILE_LEASE_DURATION": "4s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    # Whatever is offered to a worker that cannot take it has to find another by itself.
    "TURNSTILE_DISPATCH_TIMEOUT": "10m",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The system, its first worker, and that worker's links."""

    system: System
    worker: Service
    to_database: Cable
    to_broker: Cable
    history: History
    http: httpx.AsyncClient
    file: Path

    async def start(self, kinds: Sequence[str] = KINDS, *, seconds: list[float]) -> list[int]:
        """Submit one execution of each kind, attempt n to run seconds[n - 1]; wait until all run."""
        parameters = {"file": str(self.file), "seconds": seconds}
        body = [{"action_ref": f"tick.{kind}", "parameters": parameters} for kind in kinds]
        answer = await self.http.post("/executions", json=body)
        ids = [item["id"] for item in answer.json()["items"]]
        await self.traced(ids, attempt=1, event="tick")
        return ids

    def ticks(self, ids: Sequence[int], *, attempt: int) -> list[Tick]:
        """Return the signs of life of one attempt of each."""
        return [t for t in ticks_in(self.file) if t.execution_id in ids and t.attempt == attempt]

    async def traced(self, ids: Sequence[int], *, attempt: int, event: str) -> None:
        """Wait until that attempt of each has left such a trace."""

        async def all_have() -> bool:
            found = {t.execution_id for t in self.ticks(ids, attempt=attempt) if t.event == event}
            return found == set(ids)

        await until(all_have, f"{event} of attempt {attempt} of {ids}")

    async def lease_ends_at(self) -> float:
        """Return when the lease of the one worker that has work ends, in the wall clock's seconds."""
        ends_at: float = await self.history.value(
            """
            SELECT extract(epoch FROM w.lease_expires_at)::float8 FROM worker w
            WHERE w.id IN (SELECT s.worker_id FROM slot s)
            """
        )
        return ends_at

    async def passed(self, instant: float) -> None:
        """Wait until the wall clock shows a later time."""

        async def later() -> bool:
            return time.time() > instant

        await until(later, f"the clock shows {instant}")

    async def registered(self, times: int) -> None:
        """Wait until the worker's process has registered so often, each time under a new id."""

        async def has() -> bool:
            ids = await self.history.value("SELECT count(*) FROM worker WHERE pid = $1", self.worker.pid)
            return bool(ids >= times)

        await until(has, f"{times} ids of one process")

    async def attempts(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        """Return number and outcome of all attempts, in order."""
        rows = await self.history.rows(
            "SELECT attempt, outcome FROM attempt WHERE execution_id = ANY ($1) ORDER BY execution_id, 1", ids
        )
        return [(row["attempt"], row["outcome"]) for row in rows]

    async def results(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return status and result of each."""
        rows = await self.history.rows(
            "SELECT status::text, result::text FROM execution WHERE id = ANY ($1) ORDER BY id", ids
        )
        return [(row["status"], row["result"]) for row in rows]


@asynccontextmanager
async def scene(
    database_url: str,
    amqp_url: str,
    folder: Path,
    *,
    executor_too: bool = False,
    places: int = 10,
    worker_settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Scene]:
    """Run it, with so many places in the worker; `executor_too` puts the executor on the same two links."""
    async with (
        cable_to(database_url) as to_database,
        cable_to(amqp_url) as to_broker,
        history_of(database_url) as history,
        running(
            to_database.url if executor_too else database_url,
            to_broker.url if executor_too else amqp_url,
            workers=0,
            settings=SHORT_LEASE,
        ) as system,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=10) as http,
    ):
        command = {"runner": "command", "entrypoint": COMMAND}
        assert (await http.put("/actions/tick.command", json=command)).is_success
        worker = await system.start_worker(
            ACTIONS,
            TURNSTILE_DATABASE_URL=to_database.url,
            TURNSTILE_AMQP_URL=to_broker.url,
            TURNSTILE_WORKER_CONCURRENCY=str(places),
            **worker_settings,
        )
        yield Scene(
            system=system,
            worker=worker,
            to_database=to_database,
            to_broker=to_broker,
            history=history,
            http=http,
            file=folder / "ticks",
        )
        to_database.thaw()
        to_broker.thaw()
