"""A system whose first worker has a link to the broker that can be frozen, and runs that leave a trace."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.e2e.ticking import COMMAND, Tick, ticks_in
from tests.support.environment import Environment, running_environment
from tests.support.history import History
from tests.support.processes import Service
from tests.support.proxy import Proxy, proxy_to
from tests.support.traffic import until

ACTIONS = "tests.e2e.ticking"
KINDS = ("async", "child", "command")
SHORT_LEASE = {
    "TURNSTILE_LEASE_DURATION": "4s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "1s",
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitionable:
    """The system, its first worker, and the link."""

    env: Environment
    worker: Service
    to_broker: Proxy
    file: Path

    @property
    def history(self) -> History:
        """The system's history."""
        return self.env.history

    async def start_worker(self) -> Service:
        """Start one more worker, with a direct link."""
        return await self.env.system.start_worker(ACTIONS)

    async def start(self, kinds: Sequence[str] = KINDS, *, seconds: list[float]) -> list[int]:
        """Submit one execution of each kind, attempt n to run seconds[n - 1]; wait until all run."""
        parameters = {"file": str(self.file), "seconds": seconds}
        bodies = [{"action_ref": f"tick.{kind}", "parameters": parameters} for kind in kinds]
        ids = await self.env.submit_many(bodies)
        await self.until_traced(ids, attempt=1, event="tick")
        return ids

    def ticks(self, ids: Sequence[int], *, attempt: int) -> list[Tick]:
        """Return the traces of one attempt of each."""
        return [t for t in ticks_in(self.file) if t.execution_id in ids and t.attempt == attempt]

    async def until_traced(self, ids: Sequence[int], *, attempt: int, event: str) -> None:
        """Wait until that attempt of each has left such a trace."""

        def all_have() -> bool:
            found = {t.execution_id for t in self.ticks(ids, attempt=attempt) if t.event == event}
            return found == set(ids)

        await until(all_have, f"{event} of attempt {attempt} of {ids}")

    async def lease_ends_at(self) -> float:
        """Return when the lease of the first worker ends, in seconds of the wall clock."""
        answer = await self.env.http.get("/workers")
        (worker,) = (each for each in answer.json()["items"] if each["name"] == self.worker.name)
        return datetime.fromisoformat(worker["lease_expires_at"]).timestamp()

    async def until_passed(self, instant: float) -> None:
        """Wait until the wall clock shows a later time."""
        await until(lambda: time.time() > instant, f"the clock shows {instant}")

    async def until_registered(self, times: int) -> None:
        """Wait until the worker's process has registered so often, each time under a new id."""
        await self.history.until(
            "SELECT count(*) >= $2 FROM ledger.worker WHERE name = $1", self.worker.name, times
        )

    async def attempts(self, ids: Sequence[int]) -> list[tuple[int, str]]:
        """Return number and outcome of all attempts, in order."""
        return [attempt for execution_id in ids for attempt in await self.history.attempts(execution_id)]

    async def results(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return status and result of each."""
        query = "SELECT status::text, result::text FROM ledger.execution WHERE id = ANY ($1) ORDER BY id"
        return [(row["status"], row["result"]) for row in await self.history.rows(query, ids)]


@asynccontextmanager
async def partitionable(
    database_url: str,
    amqp_url: str,
    folder: Path,
    *,
    concurrency: int = 10,
) -> AsyncIterator[Partitionable]:
    """Run the system."""
    async with (
        proxy_to(amqp_url) as to_broker,
        running_environment(database_url, amqp_url, workers=0, settings=SHORT_LEASE) as env,
    ):
        await env.put("tick.command", runner="command", entrypoint=COMMAND)
        worker = await env.system.start_worker(
            ACTIONS,
            TURNSTILE_AMQP_URL=to_broker.url,
            TURNSTILE_WORKER_CONCURRENCY=str(concurrency),
        )
        yield Partitionable(env=env, worker=worker, to_broker=to_broker, file=folder / "ticks")
        to_broker.thaw()
