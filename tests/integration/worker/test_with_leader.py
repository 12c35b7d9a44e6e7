"""A leader, a broker, a database and a worker process: the whole of the new core, small."""

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.leader_broker import leader_broker
from tests.support.ledger import ledger_on
from tests.support.scripted_leader import worker_process
from tests.support.traffic import in_background, request, until
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_executor
from turnstile.executor.leader.clock import LeaderClock
from turnstile.executor.leader.turns import Leader
from turnstile.migrations.run import migrate

MODULE = "tests.support.core_actions"


class Installation:
    """One leader in this process, and requests to it."""

    def __init__(self, leader: Leader, publisher: Publisher, rows: "asyncpg.Connection[Any]") -> None:
        self.leader = leader
        self._publisher = publisher
        self._rows = rows

    async def submit(self, bodies: Sequence[dict[str, Any]]) -> None:
        await self._publisher.publish([request(body) for body in bodies])

    async def rows(self, ref: str) -> list[dict[str, Any]]:
        """Return the executions of an action, in order."""
        found = await self._rows.fetch(
            "SELECT * FROM ledger.execution WHERE action_ref = $1 ORDER BY id", ref
        )
        return [dict(row) for row in found]

    async def ended(self, ref: str, count: int) -> list[dict[str, Any]]:
        async def are_ended() -> bool:
            rows = await self.rows(ref)
            return len(rows) >= count and all(row["completed_at"] is not None for row in rows)

        await until(are_ended, f"{count} ends of {ref}", deadline_seconds=60.0)
        return await self.rows(ref)

    async def knows(self, ref: str) -> None:
        def is_known() -> bool:
            led = self.leader.leadership
            if led is None or ref not in led.state.actions:
                return False
            return any(worker.is_taking for worker in led.state.workers.values())

        await until(is_known, "the action and its worker", deadline_seconds=30.0)


@asynccontextmanager
async def installed(database_url: str, amqp_url: str) -> AsyncIterator[Installation]:
    await migrate(database_url)
    clock = LeaderClock()
    publisher = Publisher(amqp_url, name="client", declare=declare_executor)
    rows = await asyncpg.connect(database_url)
    try:
        async with ledger_on(database_url) as ledger, leader_broker(amqp_url, wake=clock.wake) as broker:
            leader = Leader("a", ledger, broker, clock)
            async with in_background(leader.run()), in_background(publisher.run()):
                await until(lambda: publisher.connected and leader.leadership is not None, "a leader")
                yield Installation(leader, publisher, rows)
    finally:
        await rows.close()


async def test_what_a_killed_worker_ran_runs_again_on_the_next_one(
    empty_url: str, amqp_url: str, tmp_path: Path
) -> None:
    settings = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "300ms"}
    async with installed(empty_url, amqp_url) as installation:
        async with worker_process(amqp_url, tmp_path, MODULE, **settings) as first:
            await installation.knows("core.wait")
            await installation.submit([{"action_ref": "core.wait", "parameters": {"seconds": 1.0}}] * 3)
            await until(lambda: first.text().count("execution_started") == 3, "the starts")
            first.signal(signal.SIGKILL)
            await first.ended()
        async with worker_process(amqp_url, tmp_path, MODULE, **settings):
            rows = await installation.ended("core.wait", 3)
            assert {row["status"] for row in rows} == {"completed"}
            assert {row["attempt"] for row in rows} == {2}
