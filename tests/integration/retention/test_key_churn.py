"""Many keys come and go under several submitters, workers and sweeps at once (P1, P2, P5, P15)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import Any

import pytest

from tests.integration.retention.test_idle_keys import FLOWS, KEYED, TURNS, keys
from tests.support.history import faults_in
from tests.support.protocol import Protocol, accepted, connected, request
from tests.support.served import serve
from tests.support.sizes import sizes
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.results import Grants
from turnstile.executor.slot_grants import QueueManager
from turnstile.worker.protocol import Claim

_SUBMITTERS, _WORKERS, _SWEEPERS = 4, 2, 2
_BATCH = 100
_RETURNING = 10
"""Keys that every batch comes back to: their queues are deleted between two uses, or just before one."""
_UNSETTLED_MAX = 2000
_AT_GATES = "SELECT * FROM turnstile.pass_rates()", "SELECT * FROM turnstile.advance_gates(100)"
_TOTAL = 300
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
            verdicts, grants = await queue_manager.admit(
                [request("a", parameters={"key": name}) for name in names]
            )
            await grant(queue_manager, grants)
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
            await grant(protocol.queue_manager, settled.grants)
            self.settled += settled.count
            await asyncio.sleep(0 if claimed else 0.005)

    async def sweep(self, protocol: Protocol) -> None:
        place = 0
        while not self.done:
            row = await protocol.row("SELECT * FROM turnstile.delete_idle_queues($1, 0, 300)", place)
            self.deleted, place = self.deleted + row["deleted"], row["next_id"]
            for statement in _AT_GATES:
                row = await protocol.row(statement)
                await protocol.grant(*(row["more_queue_ids"] or ()))
            await protocol.column("SELECT turnstile.tidy_gates(100)")
            await asyncio.sleep(0.002)


async def grant(queue_manager: QueueManager, grants: Grants) -> None:
    """Grant to the queues that may go on, as an executor does."""
    while grants.more_queue_ids:
        grants = await queue_manager.grant(grants.more_queue_ids)


@asynccontextmanager
async def managing(database_url: str) -> AsyncIterator[QueueManager]:
    database = Database(database_url, application_name="test", connections_max=1)
    await database.open()
    # Longer than a deletion takes on a busy machine: a blocked request would be refused.
    yield QueueManager(database, lock_timeout_seconds=10)
    await database.close()


@sizes("count", short=2_000, whole=20_000)
@pytest.mark.parametrize(
    "limits",
    [{}, {"max_concurrent_total": _TOTAL, "order": "fair"}],
    ids=["keys", "keys at a fair total"],
)
@pytest.mark.timeout(300)
async def test_keys_come_and_go_and_nothing_is_lost_overtaken_or_left(
    protocol: Protocol, database_url: str, count: int, limits: dict[str, Any]
) -> None:
    await protocol.put("a", **{**KEYED, **limits})
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
    assert (await protocol.column(FLOWS), await protocol.column(TURNS)) == ([], [0])
    async with serve(database_url) as api:
        stats = await api.get("/actions/a/queue-stats")
    assert (stats["total_enqueued"], stats["total_completed"]) == (churn.submitted, churn.submitted)
    assert await faults_in(database_url) == []
