"""What is older, or more, than is kept goes, with all that belongs to it; what lives in any way stays."""

import asyncio
from datetime import UTC, datetime, timedelta

from tests.integration.retention.pruning import HOUR, age, ended, left, pruner
from tests.support.protocol import Protocol, accepted, connected, request
from turnstile.common.database import Database
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.reading.audit import AuditBounds, Auditor
from turnstile.executor.settings import ExecutorSettings


async def is_in_order(database_url: str) -> bool:
    database = Database(database_url, application_name="test audit", connections_max=1)
    await database.open()
    try:
        found = await Auditor(database, AuditBounds.of(ExecutorSettings())).audit()
    finally:
        await database.close()
    return found.clean


async def test_what_is_older_than_the_age_goes_and_the_totals_stay(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    await protocol.put("b")
    old = await ended(protocol, 3, hours_ago=2)
    young = await ended(protocol, 2, hours_ago=0.5)
    other = await ended(protocol, 1, "b", hours_ago=2)
    totals = "SELECT total_enqueued, total_completed FROM action_queue ORDER BY id"
    before = await protocol.connection.fetch(totals)
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == len(old) + len(other)
    assert await left(protocol) == young
    assert await protocol.column("SELECT execution_id FROM attempt ORDER BY 1") == young
    assert await protocol.connection.fetch(totals) == before
    assert await is_in_order(database_url)


async def test_beyond_the_count_the_oldest_go(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a", concurrency_key="/key")
    ids = [(await ended(protocol, 1, parameters={"key": str(number % 2)}))[0] for number in range(7)]
    sweep = pruner(protocol, retention_count=3)
    assert await sweep.prune_executions() == 4
    assert await left(protocol) == ids[4:]
    assert await sweep.prune_executions() == 0
    ids += await ended(protocol, 2, parameters={"key": "0"})
    assert await sweep.prune_executions() == 2
    assert await left(protocol) == ids[6:]
    assert await is_in_order(database_url)


async def test_an_action_says_for_itself_what_it_keeps(protocol: Protocol) -> None:
    await protocol.put("a", keep_for=10 * HOUR)
    await protocol.put("b", keep_count=1)
    await protocol.put("c", keep_for=0, keep_count=0)
    await protocol.put("d")
    kept = await ended(protocol, 2, "a", hours_ago=5)
    kept += (await ended(protocol, 2, "b", hours_ago=0.1))[1:]
    await ended(protocol, 2, "c")
    await ended(protocol, 2, "d", hours_ago=5)
    kept += await ended(protocol, 1, "d", hours_ago=0.5)
    await pruner(protocol, retention_age=HOUR).prune_executions()
    assert await left(protocol) == kept


async def test_nothing_goes_where_all_is_kept(protocol: Protocol) -> None:
    await protocol.put("a")
    ids = await ended(protocol, 3, hours_ago=87_000)
    assert await pruner(protocol).prune_executions() == 0
    assert await left(protocol) == ids


async def test_what_lives_in_any_way_stays_however_old_it_is(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a", max_concurrent=4)
    runs, unsettled, tried_again, waits = (await protocol.submit(count=5))[:4]
    await protocol.claim(runs, unsettled, tried_again)
    await protocol.finish(unsettled)
    await protocol.finish(tried_again, retry_delay_seconds=HOUR)
    (cancelled,) = await protocol.submit()
    await protocol.cancel(cancelled)
    (not_due,) = await protocol.submit(run_at=datetime.now(UTC) + timedelta(days=1))
    (gone,) = await protocol.submit()
    await protocol.connection.execute(
        "UPDATE execution SET created_at = '2020-01-01Z';"
        "UPDATE execution SET completed_at = '2020-01-01Z' WHERE completed_at IS NOT NULL"
    )
    assert await pruner(protocol, retention_age=0, retention_count=0).prune_executions() == 0
    assert {runs, unsettled, tried_again, waits, cancelled, not_due, gone} <= set(await left(protocol))
    await protocol.settle((unsettled, 1), (cancelled, 0))
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == 2
    assert await is_in_order(database_url)


async def test_a_webhook_that_is_not_delivered_keeps_its_execution(protocol: Protocol) -> None:
    await protocol.put("a", callback_url="https://example.org/")
    pending, failed, delivered = await ended(protocol, 3, hours_ago=2)
    await protocol.connection.executemany(
        "UPDATE webhook_delivery SET state = $2, settled_at = now() WHERE execution_id = $1",
        [(failed, "failed"), (delivered, "delivered")],
    )
    await pruner(protocol, retention_age=HOUR).prune_executions()
    assert await left(protocol) == [pending, failed]
    assert await protocol.column("SELECT execution_id FROM webhook_delivery ORDER BY 1") == [pending, failed]


async def test_logs_and_deadlines_go_with_their_execution(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a")
    (gone,) = await protocol.submit(ttl=1e6)
    (stays,) = await protocol.submit(ttl=1e6)
    for one in (gone, stays):
        await protocol.claim(one)
        await protocol.connection.execute(
            "SELECT turnstile.append_logs('worker-1', ARRAY[$1::bigint], '{1}', '{0}', '{said}')",
            one,
        )
        await protocol.finish(one)
        await protocol.settle((one, 1))
    await age(protocol, [gone], 2)
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
    for table in ("attempt_log", "attempt", "expiring"):
        assert await protocol.column(f"SELECT execution_id FROM {table}") == [stays], table
    assert await is_in_order(database_url)


async def test_whatever_is_kept_an_end_stays_as_long_as_a_late_copy_may_come(protocol: Protocol) -> None:
    await protocol.put("a", keep_for=0, keep_count=0)
    just_ended = await ended(protocol)
    await ended(protocol, hours_ago=1)
    await pruner(protocol, late_copy_seconds=600).prune_executions()
    assert await left(protocol) == just_ended


async def test_rounds_go_on_behind_what_was_looked_at(protocol: Protocol) -> None:
    """In batches smaller than the record, over actions that keep and actions that do not."""
    for ref in ("a", "b", "c"):
        await protocol.put(ref, keep_for=HOUR if ref != "b" else None)
    for ref in ("a", "b", "c"):
        await ended(protocol, 5, ref, hours_ago=2)
    place, rounds, pruned = (0, 0), 0, 0
    while rounds == 0 or place != (0, 0):
        row = await protocol.connection.fetchrow(
            "SELECT * FROM turnstile.prune($1, $2, NULL, NULL, 0, 2)", *place
        )
        assert row is not None
        place, rounds, pruned = (row["next_action_id"], row["next_id"]), rounds + 1, pruned + row["pruned"]
    assert (pruned, rounds > 5) == (10, True)
    refs = "SELECT DISTINCT a.ref FROM execution e JOIN action a ON a.id = e.action_id"
    assert await protocol.column(refs) == ["b"]


async def test_a_key_that_is_pruned_while_it_is_admitted_again_is_taken_in_anew(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    await protocol.put("full", max_concurrent=0)
    (old,) = await ended(protocol, 1, hours_ago=2, idempotency_key="k")
    (head,) = await protocol.submit("full")
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1 WHERE depth > 0")
    database = Database(database_url, application_name="test admission", connections_max=1)
    await database.open()
    try:
        # The admission grants `head` after its inserts and before its look at what is known.
        async with connected(database_url) as other, other.transaction():
            await other.connection.execute("SELECT FROM execution WHERE id = $1 FOR UPDATE", head)
            again = QueueManager(database).admit([request("a", idempotency_key="k"), request("full")])
            late = asyncio.create_task(again)
            await _until_it_waits(protocol)
            await pruner(protocol, retention_age=HOUR).prune_executions()
            assert old not in await left(protocol)
        verdicts, _ = await late
    finally:
        await database.close()
    new, _ = (accepted(verdict) for verdict in verdicts)
    assert (new.duplicate, new.status) == (False, "scheduled")
    assert new.execution_id > old
    assert (await protocol.queue("full"))["total_enqueued"] == 2


async def _until_it_waits(protocol: Protocol) -> None:
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND application_name = 'test admission'"
    )
    async with asyncio.timeout(10):
        while not await protocol.column(waiting):
            await asyncio.sleep(0.005)
