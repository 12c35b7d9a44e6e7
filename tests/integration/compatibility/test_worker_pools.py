"""Migration 0020 on executions in every place: they take capacity of their pools and reach their outcomes."""

from pathlib import Path

from tests.integration.compatibility.conftest import UpgradeTo
from tests.support.gates import advance
from tests.support.history import faults_in
from tests.support.protocol import Protocol, connected, ids_in
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.migrations.run import migrate

_REVISION_0018 = Path(__file__).with_name("revision_0018.psql")
_CURRENT = "SELECT status::text FROM turnstile.current_execution ORDER BY id"
_RUN_BEFORE = {4: 2, 8: 1, 14: 1}
_GRANTED_BEFORE = {3: 1, 9: 1, 10: 1, 12: 1}


async def test_every_execution_of_the_previous_schema_takes_its_worker_slot_and_comes_to_its_end(
    upgrade_to: UpgradeTo,
) -> None:
    database_url = await _migrated_from_0018(upgrade_to)
    async with connected(database_url) as protocol:
        assert await _pools(protocol) == {"default": (None, 6), "gpu": (None, 1)}
        # The action was deleted, and so is its pool.
        assert await protocol.column("SELECT execution_id FROM slot WHERE pool_id IS NULL") == [14]
        assert [fault.partition(":")[0] for fault in await faults_in(database_url)] == ["waking"]

        await _count(protocol)
        # The worker has four worker slots and a lead of one. What the pool `gpu` has granted takes none.
        assert await _pools(protocol) == {"default": (5, 6), "gpu": (1, 1)}
        assert await protocol.column("SELECT served FROM action WHERE ref IN ('a', 'gpu') ORDER BY id") == [
            True,
            False,
        ]

        # A worker of the previous version ended these while no executor ran.
        for execution_id, attempt in _RUN_BEFORE.items():
            verdict = await protocol.finish_verdict(execution_id, attempt=attempt, worker="live")
            assert verdict == "applied"
        freed = await protocol.settle((2, 1))
        assert (freed.count, freed.granted) == (1, [])
        # The worker slots of the two others are free now; the queue `a` has a slot less.
        freed = await protocol.settle(*_RUN_BEFORE.items())
        assert (freed.count, freed.granted) == (3, [5, 6])
        assert await protocol.column(_CURRENT + " LIMIT 1 OFFSET 10") == ["queued"]
        woken, _ = await protocol.wake_due()
        assert [move.execution_id for move in woken] == [7]

        await protocol.register("other", pools=["gpu"])
        await _run_all(protocol)
        assert await protocol.column(_CURRENT) == ["completed"] * 14
        assert await _pools(protocol) == {"default": (5, 0), "gpu": (5, 0)}
        assert await faults_in(database_url) == []


async def test_without_a_new_executor_the_pools_have_no_limit(upgrade_to: UpgradeTo) -> None:
    database_url = await _migrated_from_0018(upgrade_to)
    async with connected(database_url) as protocol:
        ids = await protocol.submit("b", 50)
        assert set(ids) <= set(await protocol.held())
        await protocol.put("new", pool="new")
        (one,) = await protocol.submit("new")
        assert one in await protocol.held()
        await _count(protocol)
        assert await _pools(protocol) == {"default": (5, 56), "gpu": (1, 1), "new": (1, 1)}
        (late,) = await protocol.submit("b")
        assert late not in await protocol.held()


async def _migrated_from_0018(upgrade_to: UpgradeTo) -> str:
    """Migrate such a database to the newest revision; all executors were stopped before."""
    database_url = await upgrade_to("0018")
    async with connected(database_url) as previous:
        await previous.connection.execute(_REVISION_0018.read_text())
        before = await previous.column("SELECT status::text FROM execution ORDER BY id")
    await migrate(database_url)
    async with connected(database_url) as protocol:
        for execution_id in _GRANTED_BEFORE:
            before[execution_id - 1] = "scheduled"
        for execution_id in _RUN_BEFORE:
            before[execution_id - 1] = "running"
        assert await protocol.column(_CURRENT) == before
    return database_url


async def _count(protocol: Protocol) -> list[int]:
    """Count the workers, as a new executor does first; return what that grants."""
    refreshed = await ExecutorProtocol(protocol.database).refresh_pools(None, {})
    assert refreshed.repaired == 0
    return ids_in(await protocol.grant(*refreshed.more_queue_ids))


async def _pools(protocol: Protocol) -> dict[str, tuple[int | None, int]]:
    """Return the capacity and the held worker slots of each pool."""
    rows = await protocol.connection.fetch("SELECT name, capacity, held FROM turnstile.current_pool")
    return {row["name"]: (row["capacity"], row["held"]) for row in rows}


async def _run_all(protocol: Protocol) -> None:
    await _count(protocol)
    # The routes are new: the watchdog looks from the start of each gate what has to return to its queue.
    await advance(protocol.database)
    while rows := await protocol.connection.fetch("SELECT execution_id, attempt FROM slot ORDER BY 1"):
        attempts = {row["execution_id"]: row["attempt"] for row in rows}
        for execution_id, attempt in attempts.items():
            await protocol.run(execution_id, attempt=attempt, worker="live")
        await protocol.settle(*attempts.items())
        await _count(protocol)
