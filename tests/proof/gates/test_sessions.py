"""Several sessions work on the same gates: nothing is exceeded, miscounted or deadlocked (P1, P11)."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tests.proof.gates.twin import CLOSED, Tables, Twin, for_statements, found
from tests.proof.gates.walks import CONFIGURATIONS, broad, chain
from tests.support.protocol import Protocol, connected
from tests.support.sizes import sizes
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.worker.protocol import Offer, Report

SESSIONS = 3


class Session:
    """One of several sessions: a random operation at a time, each repeated if it is asked to."""

    def __init__(self, protocol: Protocol, twin: Twin, seed: int) -> None:
        self.protocol = protocol
        self.twin = twin
        self.chance = random.Random(seed)
        self.worker = f"session-{seed}"
        self.repeated = 0

    async def run(self, operations: int) -> None:
        await self.protocol.register(self.worker, pools=("default", "free"))
        chosen: list[Callable[[], Awaitable[None]]] = [
            self.admit, self.admit, self.work, self.work, self.cancel, self.advance, self.reroute,
            self.change, self.hand_back,
        ]  # fmt: skip
        for _ in range(operations):
            operation = self.chance.choice(chosen)
            for _ in range(20):
                try:
                    await operation()
                except asyncpg.SerializationError:
                    self.repeated += 1
                else:
                    break
            else:
                raise AssertionError(f"{operation.__name__} is repeated without end")

    async def grant(self, row: asyncpg.Record) -> None:
        await self.grant_queues(row["more_queue_ids"])

    async def grant_queues(self, queue_ids: Sequence[int] | None) -> None:
        if queue_ids:
            await self.protocol.row("SELECT * FROM turnstile.grant_slots($1)", sorted(set(queue_ids)))

    async def admit(self) -> None:
        requests = self.twin.configuration.requests
        batch = [self.chance.choice(requests) for _ in range(self.chance.randrange(1, 5))]
        await self.grant(await self.twin.admitted(self.protocol, batch))

    async def offers(self, where: str) -> list[Offer]:
        rows = await self.protocol.connection.fetch(
            f"SELECT execution_id, attempt FROM slot WHERE {where} ORDER BY random() LIMIT 3", self.worker
        )
        return [
            Offer(execution_id=ExecutionId(row["execution_id"]), attempt=Attempt(row["attempt"]))
            for row in rows
        ]

    async def work(self) -> None:
        await self.protocol.record(self.worker).exchange(
            await self.offers("worker_id IS NULL AND finished_at IS NULL AND $1 <> ''")
        )
        reports = [
            Report(execution_id=o.execution_id, attempt=o.attempt, status=Status.COMPLETED, result_json="1")
            for o in await self.offers("worker_id = $1 AND finished_at IS NULL")
        ]
        await self.protocol.record(self.worker).exchange(reports)
        await self.settle()

    async def settle(self) -> None:
        """Settle some of what has ended, also what other sessions settle at the same time."""
        rows = await self.protocol.connection.fetch(
            "SELECT e.id, e.attempt, e.status::text FROM execution e"
            " WHERE e.completed_at IS NOT NULL AND (e.id IN (SELECT execution_id FROM slot)"
            " OR e.id IN (SELECT execution_id FROM unpublished_completion)) ORDER BY random() LIMIT 4"
        )
        row = await self.protocol.row(
            "SELECT * FROM turnstile.settle($1, $2, in_statuses => $3)",
            [r["id"] for r in rows], [r["attempt"] for r in rows], [r["status"] for r in rows],
        )  # fmt: skip
        await self.grant(row)

    async def cancel(self) -> None:
        ids = await self.protocol.column(
            "SELECT turnstile.id_of_place(place) FROM waiting ORDER BY random() LIMIT 2"
        )
        await self.protocol.cancel(*ids)

    async def hand_back(self) -> None:
        offers = await self.offers("worker_id = $1 AND finished_at IS NULL")
        await self.protocol.record(self.worker).hand_back(offers)

    async def advance(self) -> None:
        await self.grant(await self.protocol.row("SELECT * FROM turnstile.advance_gates(3)"))
        await self.grant(await self.protocol.row("SELECT * FROM turnstile.pass_rates()"))

    async def reroute(self) -> None:
        name = self.chance.choice([a.name for a in self.twin.system.actions.values() if a.uses] or [""])
        if name:
            uses = self.twin.system.actions[name].uses
            kept = {used: units for used, units in uses.items() if self.chance.random() < 0.6}
            async with self.protocol.transaction():
                await self.protocol.connection.execute(
                    "UPDATE action SET uses = $2 WHERE ref = $1", name, self.twin.uses(name, kept)
                )
                await self.protocol.connection.execute(
                    "SELECT turnstile.reroute($1)", [self.twin.action_ids[name]]
                )

    async def change(self) -> None:
        """Pause or resume a resource."""
        await self.protocol.connection.execute(
            "UPDATE gate SET paused = NOT paused,"
            " returning_from = CASE WHEN paused THEN returning_from ELSE $2 END"
            " WHERE kind = 'resource' AND name = $1",
            self.chance.choice([*self.twin.system.resources, ""]), CLOSED,
        )  # fmt: skip


@sizes("rounds", short=2, whole=60)
@pytest.mark.timeout(900)
async def test_sessions_at_once_exceed_and_miscount_nothing(database_url: str, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(connected(database_url)) for _ in range(SESSIONS)]
        for number in range(rounds):
            build = (chain, broad, *CONFIGURATIONS)[number % (2 + len(CONFIGURATIONS))]
            first = sessions[0]
            await first.connection.execute(
                "TRUNCATE execution, slot, waiting, delayed, expiring, unpublished_completion,"
                " unpublished_cancel, attempt, action, action_queue, queue_state, audit_log, gate,"
                " gate_state, gate_flow, flow_turn, gate_window, rate_start, key_override, worker,"
                " worker_lease CASCADE"
            )
            twin = Twin(first, for_statements(build(8)))
            await twin.define()
            async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
                for index, protocol in enumerate(sessions):
                    session = Session(protocol, twin, number * SESSIONS + index)
                    tasks.create_task(session.run(60))
            await _comes_to_rest(Session(first, twin, 10_000 + number))


async def _comes_to_rest(session: Session) -> None:
    """Open everything: each execution is granted, and nothing stays held."""
    await session.protocol.connection.execute("UPDATE gate SET paused = false")
    await session.protocol.register(session.worker, pools=("default", "free"))
    for _ in range(400):
        await session.protocol.connection.execute(
            "UPDATE rate_start SET granted_at = granted_at - interval '1 day'"
        )
        await session.advance()
        await session.grant_queues(await session.protocol.grantable_queues())
        row = await session.protocol.row(
            "SELECT (SELECT count(*) FROM gate WHERE returning_from IS NOT NULL) AS returning,"
            " (SELECT count(*) FROM waiting) + (SELECT count(*) FROM slot)"
            " + (SELECT count(*) FROM unpublished_completion) AS live"
        )
        if not row["returning"]:
            Tables(await found(session.protocol.connection)).check()
        if not row["live"] and not row["returning"]:
            break
        # Attempts that another session had claimed.
        await session.protocol.connection.execute(
            "UPDATE slot SET worker_id = $1 WHERE worker_id <> $1 AND finished_at IS NULL", session.worker
        )
        await session.work()
    tables = Tables(await found(session.protocol.connection))
    tables.check()
    assert not tables.found["waiting"], "something waits for ever"
    assert not any(gate["held"] for gate in tables.gates.values())
