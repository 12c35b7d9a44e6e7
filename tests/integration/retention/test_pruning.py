"""Executions, workers, changes and webhooks are deleted by age or count, beside other sessions."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from tests.integration.retention.pruning import HOUR, age, ended, left, pruner
from tests.support.history import faults_in
from tests.support.protocol import WORKER, Protocol, accepted, blocked, connected, offer, request
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.worker.progress import Progress


async def test_executions_above_the_age_are_deleted_and_the_totals_stay(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    await protocol.put("b")
    old = await ended(protocol, 3, hours_ago=2)
    young = await ended(protocol, 2, hours_ago=0.5)
    other = await ended(protocol, 1, "b", hours_ago=2)
    totals = "SELECT total_enqueued, total_completed FROM turnstile.current_queue ORDER BY id"
    before = await protocol.connection.fetch(totals)
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == len(old) + len(other)
    assert await left(protocol) == young
    assert await protocol.column("SELECT execution_id FROM turnstile.ended_attempt ORDER BY 1") == young
    assert await protocol.connection.fetch(totals) == before
    assert await faults_in(database_url) == []


async def test_the_oldest_executions_above_the_count_are_deleted(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", concurrency_key="/key")
    ids = [(await ended(protocol, 1, parameters={"key": str(number % 2)}))[0] for number in range(7)]
    sweep = pruner(protocol, retention_count=3)
    assert await sweep.prune_executions() == 4
    assert await left(protocol) == ids[4:]
    assert await sweep.prune_executions() == 0
    ids += await ended(protocol, 2, parameters={"key": "0"})
    assert await sweep.prune_executions() == 2
    assert await left(protocol) == ids[6:]
    assert await faults_in(database_url) == []


async def test_an_action_overrides_the_retention_settings(protocol: Protocol) -> None:
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


async def test_executions_that_are_not_settled_are_never_pruned(
    protocol: Protocol, database_url: str
) -> None:
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
    assert await faults_in(database_url) == []


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


async def test_logs_progress_deadlines_and_returns_are_deleted_with_their_execution(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    (gone,) = await protocol.submit(ttl=1e6)
    (stays,) = await protocol.submit(ttl=1e6)
    for one in (gone, stays):
        await protocol.claim(one)
        await protocol.connection.execute(
            "SELECT turnstile.append_logs('worker-1', ARRAY[$1::bigint], '{1}', '{0}', '{text}')",
            one,
        )
        assert await protocol.record(WORKER).report_progress([(offer(one, 1), Progress(done=1))])
        await protocol.finish(one, log="the rest", log_start=4)
        await protocol.settle((one, 1))
        await protocol.connection.execute("INSERT INTO gate_return VALUES ($1, now())", one)
    await age(protocol, [gone], 2)
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
    for table in ("attempt_log", "attempt_progress", "attempt", "expiring", "gate_return"):
        assert await protocol.column(f"SELECT execution_id FROM {table}") == [stays], table
    assert await faults_in(database_url) == []


async def test_an_execution_is_kept_while_a_late_copy_of_its_message_may_arrive(protocol: Protocol) -> None:
    await protocol.put("a", keep_for=0, keep_count=0)
    just_ended = await ended(protocol)
    await ended(protocol, hours_ago=1)
    await pruner(protocol, late_copy_seconds=600).prune_executions()
    assert await left(protocol) == just_ended


async def test_a_round_in_small_batches_covers_every_action(protocol: Protocol) -> None:
    """In batches smaller than the history, over actions that keep and actions that do not."""
    for ref in ("a", "b", "c"):
        await protocol.put(ref, keep_for=HOUR if ref != "b" else None)
    for ref in ("a", "b", "c"):
        await ended(protocol, 5, ref, hours_ago=2)
    place, rounds, pruned = (0, 0), 0, 0
    while rounds == 0 or place != (0, 0):
        row = await protocol.row("SELECT * FROM turnstile.prune($1, $2, NULL, NULL, 0, 2)", *place)
        place, rounds, pruned = (row["next_action_id"], row["next_id"]), rounds + 1, pruned + row["pruned"]
    assert (pruned, rounds > 5) == (10, True)
    refs = "SELECT DISTINCT a.ref FROM execution e JOIN action a ON a.id = e.action_id"
    assert await protocol.column(refs) == ["b"]


_ADMISSION_WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
               AND wait_event_type = 'Lock' AND application_name = 'test admission')
"""


async def test_an_idempotency_key_pruned_during_its_admission_is_admitted_anew(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a")
    await protocol.put("full", max_concurrent=0)
    (old,) = await ended(protocol, 1, hours_ago=2, idempotency_key="k")
    (head,) = await protocol.submit("full")
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1 WHERE max_concurrent = 0")
    database = Database(database_url, application_name="test admission", connections_max=1)
    await database.open()
    try:
        # The admission grants `head` after its inserts and before its search for duplicates.
        async with connected(database_url) as other, other.transaction():
            await other.connection.execute("SELECT FROM waiting WHERE place = $1 FOR UPDATE", head)
            again = QueueManager(database).admit([request("a", idempotency_key="k"), request("full")])
            late = asyncio.create_task(again)
            await protocol.until(_ADMISSION_WAITS)
            await pruner(protocol, retention_age=HOUR).prune_executions()
            assert old not in await left(protocol)
        verdicts, _ = await late
    finally:
        await database.close()
    new, _ = (accepted(verdict) for verdict in verdicts)
    assert (new.duplicate, new.status) == (False, "scheduled")
    assert new.execution_id > old
    assert (await protocol.queue("full"))["total_enqueued"] == 2


async def test_only_workers_that_left_long_ago_are_deleted(protocol: Protocol) -> None:
    for worker in ("left", "lost", "holds", "young", "cancel"):
        await protocol.register(worker)
    await protocol.put("a")
    (one,) = await protocol.submit()
    await protocol.claim(one, worker="holds")
    await protocol.connection.execute(
        "UPDATE worker SET started_at = '2020-01-01Z', renewed_at = '2020-01-01Z';"
        "UPDATE worker SET stopped_at = '2020-01-01Z' WHERE id = 'left';"
        "UPDATE worker SET lost_at = '2020-01-01Z' WHERE id IN ('lost', 'holds', 'cancel');"
        "UPDATE worker SET stopped_at = now() WHERE id = 'young';"
        "INSERT INTO unpublished_cancel VALUES (1, 1, 'cancel', now())"
    )
    assert await pruner(protocol).prune_workers() == 2
    assert await protocol.column("SELECT id FROM worker ORDER BY id") == [
        "cancel",
        "holds",
        "worker-1",
        "young",
    ]


async def test_pools_that_no_action_names_are_deleted_with_their_turns(
    protocol: Protocol, other: Protocol
) -> None:
    async def prune() -> list[str]:
        await pruner(protocol).prune_pools()
        return await protocol.column("SELECT name FROM worker_pool ORDER BY id")

    await protocol.register("other", pools=["left", "moved"])
    for ref, pool in (("a", "default"), ("b", "left"), ("c", "moved"), ("d", "held")):
        await protocol.put(ref, pool=pool)
    await ExecutorProtocol(protocol.database).refresh_pools(None, {})
    ids = await protocol.submit("c", 6)
    for each in ("b", "d"):
        await protocol.row(f"SELECT * FROM turnstile.delete_action('{each}', 9, 'test', 'test')")
    assert await prune() == ["default", "moved"]
    # The row of the deleted action still names its pool.
    await protocol.put("b", pool="left")
    (one,) = await protocol.submit("b")
    assert one in await protocol.held()
    await protocol.put("c")
    assert await prune() == ["default", "moved", "left"]
    for granted in ids[:5]:
        await protocol.run(granted, worker="other")
        await protocol.settle((granted, 1))
    # What is being stored may name it.
    async with other.transaction():
        await other.put("a", pool="moved")
        assert await prune() == ["default", "moved", "left"]
    assert await prune() == ["default", "moved", "left"]
    await protocol.put("a")
    assert await prune() == ["default", "left"]
    await protocol.run(one, worker="other")
    await protocol.settle((one, 1))
    for each in ("a", "b", "c"):
        await protocol.row(f"SELECT * FROM turnstile.delete_action('{each}', 9, 'test', 'test')")
    # A new pool has a limit at once, because another one was counted.
    assert await prune() == ["default"]
    await protocol.put("e", pool="new")
    assert await protocol.column("SELECT name FROM turnstile.current_pool WHERE capacity IS NULL") == []
    for table in ("pool_state", "pool_turn"):
        query = f"SELECT count(*) FROM {table} WHERE pool_id NOT IN (SELECT id FROM worker_pool)"
        assert await protocol.column(query) == [0]


async def test_old_changes_of_actions_are_deleted(protocol: Protocol) -> None:
    for limit in (1, 2, 3):
        await protocol.put("a", max_concurrent=limit)
    await protocol.connection.execute(
        "UPDATE audit_log SET recorded_at = '2020-01-01Z'"
        " WHERE id IN (SELECT id FROM audit_log ORDER BY id LIMIT 2)"
    )
    assert await pruner(protocol).prune_audit_log() == 2
    assert await protocol.column("SELECT after ->> 'max_concurrent' FROM audit_log") == ["3"]


async def test_old_webhooks_fail_or_are_deleted_in_several_batches(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention._ROWS_MAX", 2)
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, settled_at)"
        " SELECT n, 'u', 'o', now() - interval '9 d', now() - interval '9 d',"
        " CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END,"
        " CASE WHEN n % 2 = 1 THEN now() - interval '8 d' END FROM generate_series(1, 10) n"
    )
    assert await pruner(protocol).clean_webhooks() == 10
    assert await protocol.column("SELECT DISTINCT state FROM webhook_delivery") == ["failed"]
    assert await protocol.column("SELECT count(*) FROM webhook_delivery") == [5]


async def test_one_replica_prunes_at_a_time_and_the_others_do_not_wait(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put("a")
    ids = await ended(protocol, 3, hours_ago=2)
    async with protocol.transaction():
        await protocol.connection.execute("SELECT * FROM turnstile.prune(0, 0, 3600, NULL, 0, 1)")
        assert await pruner(other, retention_age=HOUR).prune_executions() == 0
    assert await left(other) == ids[1:]
    assert await pruner(other, retention_age=HOUR).prune_executions() == 2


async def test_pruning_skips_locked_executions(protocol: Protocol, other: Protocol) -> None:
    await protocol.put("a")
    first, second = await ended(protocol, 2, hours_ago=2)
    async with other.transaction():
        await other.connection.execute("SELECT FROM execution WHERE id = $1 FOR KEY SHARE", first)
        assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
        assert await left(protocol) == [first]
    assert second not in await left(protocol)


async def test_pruning_waits_for_no_queue_and_delays_none(protocol: Protocol, other: Protocol) -> None:
    await protocol.put("a")
    await ended(protocol, 2, hours_ago=2)
    async with other.transaction():
        await other.connection.execute("SELECT FROM action_queue FOR NO KEY UPDATE")
        await other.connection.execute("SELECT FROM action FOR NO KEY UPDATE")
        await protocol.connection.execute("SET lock_timeout = '2s'")
        assert await pruner(protocol, retention_age=HOUR).prune_executions() == 2
    async with protocol.transaction():
        await ended(other, 2, hours_ago=2)
        await protocol.connection.execute("SELECT * FROM turnstile.prune(0, 0, 3600, NULL, 0, 100)")
        await other.connection.execute("SET lock_timeout = '2s'")
        assert len(await ended(other, 2)) == 2


async def test_an_execution_pruned_while_its_retry_waits_is_retried(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put("a")
    (one,) = await ended(protocol, hours_ago=2)
    async with protocol.transaction():
        await protocol.put("a", max_concurrent=5)
        waiting = await blocked(other, protocol, other.queue_manager.retry([(ExecutionId(one), None)]))
        assert await pruner(protocol, retention_age=HOUR).prune_executions() == 1
    ((retried,), _) = await waiting
    assert (retried.previous_status, retried.action_ref) == ("completed", "a")
    assert retried.verdict is not None
    assert await left(protocol) == [accepted(retried.verdict).execution_id]


async def test_an_execution_that_ends_while_its_retry_waits_is_not_retried(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put("a", max_concurrent=1)
    (done,) = await ended(protocol)
    runs, queued = await protocol.submit(count=2)
    async with protocol.transaction():
        await protocol.cancel(queued)
        retries = [(ExecutionId(i), None) for i in (done, queued)]
        waiting = await blocked(other, protocol, other.queue_manager.retry(retries))
    (retried, refused), _ = await waiting
    assert retried.previous_status == "completed"
    assert (refused.previous_status, refused.verdict) == ("queued", None)
    assert await protocol.held() == [runs]


def test_an_age_is_a_duration_or_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "90d")
    assert ExecutorSettings().retention_age == 90 * 86_400
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", " Forever ")
    assert ExecutorSettings().retention_age is None
    monkeypatch.setenv("TURNSTILE_RETENTION_AGE", "never")
    with pytest.raises(ValidationError, match="not a duration"):
        ExecutorSettings()
