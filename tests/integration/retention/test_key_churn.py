"""Many keys come and go under several submitters, workers and sweeps at once (P1, P2, P5)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice

import pytest

from tests.integration.retention.test_idle_keys import keys
from tests.support.history import faults_in
from tests.support.protocol import Protocol, accepted, connected, request
from tests.support.served import serve
from tests.support.sizes import sizes
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import QueueManager
from turnstile.worker.protocol import Claim

_SUBMITTERS, _WORKERS, _SWEEPERS = 4, 2, 2
_BATCH = 100
_RETURNING = 10
"""Keys that every batch comes back to: their queues are deleted between two uses, or just before one."""
_UNSETTLED_MAX = 2000
_OVERTAKEN = """
SELECT count(*) FROM (
    SELECT e.scheduled_at, lag(e.completed_at) OVER (PARTITION BY e.concurrency_key ORDER BY e.id) AS ended
    FROM execution e
) e WHERE e.scheduled_at < e.ended
"""


class Churn:
    """The requests that are not submitted yet, and the progress of the workers."""

    def __init__(self, count: int) -> None:
        self.fresh = iter(range(count))
        self.submitted = 0
        self.settled = 0
        self.deleted = 0
        self.done = False

    async def submit(self, queue_manager: QueueManager) -> None:
        while names := [f"once-{number}" for number in islice(self.fresh, _BATCH)]:
            while self.submitted - self.settled > _UNSETTLED_MAX:
                await asyncio.sleep(0.005)
            names += [f"again-{number}" for number in range(_RETURNING)]
            verdicts, _ = await queue_manager.admit(
                [request("a", parameters={"key": name}) for name in names]
            )
            self.submitted += len({accepted(verdict).execution_id for verdict in verdicts})

    async def work(self, protocol: Protocol, part: int) -> None:
        unclaimed = (
            "SELECT execution_id FROM slot WHERE claimed_at IS NULL AND execution_id % $1 = $2 LIMIT 300"
        )
        while not self.done:
            offered = await protocol.column(unclaimed, _WORKERS, part)
            claims = [claim for claim in await protocol.claim(*offered) if isinstance(claim, Claim)]
            claimed = [claim.execution_id for claim in claims]
            await protocol.finish(*claimed)
            ends = [(ExecutionId(i), Attempt(1), Status.COMPLETED) for i in claimed]
            settled = await protocol.queue_manager.settle(ends)
            self.settled += settled.count
            await asyncio.sleep(0 if claimed else 0.005)

    async def sweep(self, protocol: Protocol) -> None:
        place = 0
        while not self.done:
            row = await protocol.row("SELECT * FROM turnstile.delete_idle_queues($1, 0, 300)", place)
            self.deleted, place = self.deleted + row["deleted"], row["next_id"]
            await asyncio.sleep(0.002)


@asynccontextmanager
async def managing(database_url: str) -> AsyncIterator[QueueManager]:
    database = Database(database_url, application_name="test", connections_max=1)
    await database.open()
    yield QueueManager(database)
    await database.close()


@sizes("count", short=4_000, whole=20_000)
@pytest.mark.timeout(300)
async def test_keys_come_and_go_and_nothing_is_lost_overtaken_or_left(
    protocol: Protocol, database_url: str, count: int
) -> None:
    await protocol.put("a", concurrency_key="/key", max_concurrent=1)
    churn = Churn(count)
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(managing(database_url)) for _ in range(_SUBMITTERS)]
        sessions = [
            await stack.enter_async_context(connected(database_url)) for _ in range(_WORKERS + _SWEEPERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for part, session in enumerate(sessions[:_WORKERS]):
                tasks.create_task(churn.work(session, part))
            for session in sessions[_WORKERS:]:
                tasks.create_task(churn.sweep(session))
            async with asyncio.TaskGroup() as submitting:
                for manager in managers:
                    submitting.create_task(churn.submit(manager))
            while churn.settled < churn.submitted:
                await asyncio.sleep(0.01)
            churn.done = True
    assert churn.submitted == count + _RETURNING * (count // _BATCH)
    assert churn.deleted > count // 2, "the sweeps were not beside the submitters"
    assert await protocol.column(_OVERTAKEN) == [0]
    assert await faults_in(database_url) == []
    while await protocol.delete_idle_queues():
        pass
    assert await keys(protocol) == []
    async with serve(database_url) as api:
        stats = await api.get("/actions/a/queue-stats")
    assert (stats["total_enqueued"], stats["total_completed"]) == (churn.submitted, churn.submitted)
    assert await faults_in(database_url) == []
