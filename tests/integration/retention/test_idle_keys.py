"""Queues of idle keys are deleted; their totals stay with the action, and their executions stay stored."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.integration.retention.pruning import HOUR, age, ended, left, pruner
from tests.support.history import faults_in
from tests.support.protocol import Protocol, accepted, request
from tests.support.served import serve
from turnstile.common.domain.states import Status
from turnstile.executor.retention import Pruner

KEYED: Final[dict[str, Any]] = {"concurrency_key": "/key", "max_concurrent": 1}
WITH_TOTAL: Final[dict[str, Any]] = {**KEYED, "max_concurrent_total": 5, "order": "fair"}
FLOWS: Final = (
    "SELECT q.concurrency_key FROM gate_flow f JOIN gate g ON g.id = f.gate_id AND g.kind = 'action'"
    " LEFT JOIN action_queue q ON q.id = f.flow_id ORDER BY 1"
)
"""The keys of the flows at totals; None: its queue is gone."""
TURNS: Final = "SELECT count(*) FROM flow_turn t JOIN gate g ON g.id = t.gate_id AND g.kind = 'action'"


async def keys(protocol: Protocol) -> list[str]:
    return await protocol.column("SELECT concurrency_key FROM action_queue ORDER BY 1")


async def ended_with(protocol: Protocol, *of_keys: str, ref: str = "a", **fields: Any) -> list[int]:
    """One execution of each key that has ended and is settled."""
    return [(await ended(protocol, 1, ref, parameters={"key": key}, **fields))[0] for key in of_keys]


async def admitted_at_total(protocol: Protocol, *of_keys: str) -> list[int]:
    """One execution of each key, after it has passed the total if there is room."""
    verdicts, grants = await protocol.admit(*(request("a", parameters={"key": key}) for key in of_keys))
    await protocol.grant(*grants.more_queue_ids)
    return [accepted(verdict).execution_id for verdict in verdicts]


async def ended_at_total(protocol: Protocol, *of_keys: str) -> None:
    ids = await admitted_at_total(protocol, *of_keys)
    await protocol.run(*ids)
    await protocol.settle(*((i, 1) for i in ids))


async def test_the_queue_of_an_idle_key_goes_and_the_totals_of_its_action_stay(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await protocol.put("b", **KEYED)
    await protocol.put("never-used", **KEYED)
    await ended_with(protocol, "x", "y", "y", "z")
    await ended_with(protocol, "x", ref="b")
    async with serve(database_url) as api:
        before = {ref: await api.get(f"/actions/{ref}/queue-stats") for ref in ("a", "b", "never-used")}
        assert (before["a"]["total_enqueued"], before["a"]["total_completed"]) == (4, 4)
        assert await faults_in(database_url) == []
        assert await protocol.delete_idle_queues() == 4
        assert await keys(protocol) == []
        after = {ref: await api.get(f"/actions/{ref}/queue-stats") for ref in before}
        assert after == {ref: {**stats, "by_key": []} for ref, stats in before.items()}
    assert await faults_in(database_url) == []


async def waits(protocol: Protocol) -> None:
    await protocol.put("a", **{**KEYED, "max_concurrent": 0})
    await protocol.submit(parameters={"key": "x"})


async def is_not_due(protocol: Protocol) -> None:
    await protocol.submit(parameters={"key": "x"}, run_at=datetime.now(UTC) + timedelta(days=1))


async def is_offered(protocol: Protocol) -> None:
    await protocol.submit(parameters={"key": "x"})


async def runs(protocol: Protocol) -> None:
    await protocol.claim(*await protocol.submit(parameters={"key": "x"}))


async def is_not_settled(protocol: Protocol) -> None:
    await protocol.run(*await protocol.submit(parameters={"key": "x"}))


async def waits_for_its_retry(protocol: Protocol) -> None:
    (one,) = await protocol.submit(parameters={"key": "x"})
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=HOUR)
    await protocol.settle((one, 1))


async def has_an_unpublished_completion(protocol: Protocol) -> None:
    (one,) = await protocol.submit(parameters={"key": "x"}, run_at=datetime.now(UTC) + timedelta(days=1))
    await protocol.cancel(one)


async def has_a_limit_of_its_own(protocol: Protocol) -> None:
    await ended_with(protocol, "x")
    await protocol.connection.execute(
        "UPDATE action_queue SET max_concurrent = 7 WHERE concurrency_key = 'x'"
    )


async def has_a_pause_of_its_own(protocol: Protocol) -> None:
    await ended_with(protocol, "x")
    await protocol.connection.execute("UPDATE action_queue SET paused = true WHERE concurrency_key = 'x'")


async def has_wrong_counters(protocol: Protocol) -> None:
    await protocol.put("a", **{**KEYED, "max_concurrent": 0})
    await protocol.submit(parameters={"key": "x"})
    await protocol.connection.execute(
        "UPDATE queue_state s SET depth = 0, total_completed = total_enqueued"
        " FROM action_queue q WHERE q.id = s.queue_id AND q.concurrency_key = 'x'"
    )


async def test_a_key_that_is_in_use_in_any_way_keeps_its_queue(protocol: Protocol) -> None:
    for use in (
        waits, is_not_due, is_offered, runs, is_not_settled, waits_for_its_retry,
        has_an_unpublished_completion, has_a_limit_of_its_own, has_a_pause_of_its_own, has_wrong_counters,
    ):  # fmt: skip
        async with protocol.undone():
            await protocol.put("a", **KEYED)
            await ended_with(protocol, "idle")
            await use(protocol)
            await protocol.delete_idle_queues()
            assert await keys(protocol) == ["x"], use.__name__


async def test_only_queues_idle_for_long_enough_are_deleted_and_never_one_without_a_key(
    protocol: Protocol,
) -> None:
    await protocol.put("a", **KEYED)
    await protocol.put("plain")
    await ended(protocol, 1, "plain")
    await ended_with(protocol, "old", "young")
    await protocol.connection.execute(
        "UPDATE queue_state s SET updated_at = now() - interval '2 h'"
        " FROM action_queue q WHERE q.id = s.queue_id AND q.concurrency_key <> 'young'"
    )
    assert await protocol.delete_idle_queues(HOUR) == 1
    assert await keys(protocol) == ["", "young"]


async def test_a_limit_of_the_action_is_no_configuration_of_its_keys(protocol: Protocol) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    await protocol.put("a", **{**KEYED, "max_concurrent": 3, "paused": True})
    assert await protocol.delete_idle_queues() == 1
    await protocol.submit(parameters={"key": "x"}, count=2)
    queue = await protocol.queue("a", "x")
    assert (queue["max_concurrent"], queue["paused"], queue["depth"]) == (3, True, 2)


async def test_the_flow_of_an_idle_key_goes_with_its_queue(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a", **WITH_TOTAL)
    for _ in range(3):
        await ended_at_total(protocol, "x", "y")
        assert await protocol.column(FLOWS) == ["x", "y"]
        running = await admitted_at_total(protocol, "z")
        assert await protocol.delete_idle_queues() == 2
        assert await protocol.column(FLOWS) == ["z"]
        assert await protocol.column(TURNS) == [1]
        assert await faults_in(database_url) == []
        await protocol.run(*running)
        await protocol.settle((running[0], 1))
        assert await protocol.delete_idle_queues() == 1
        assert (await protocol.column(FLOWS), await protocol.column(TURNS)) == ([], [0])


async def test_a_key_that_waits_at_the_total_keeps_its_queue_whatever_its_counters_say(
    protocol: Protocol,
) -> None:
    await protocol.put("a", **{**WITH_TOTAL, "max_concurrent_total": 1})
    await admitted_at_total(protocol, "running", "waiting")
    await protocol.connection.execute(
        "UPDATE queue_state SET depth = 0, held = 0, granted_limit = NULL, total_completed = total_enqueued"
    )
    assert await protocol.delete_idle_queues() == 0
    assert await protocol.column(FLOWS) == ["running", "waiting"]


async def test_executions_of_a_deleted_queue_are_read_listed_and_retried(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    (one,) = await ended_with(protocol, "x", ttl=1e6)
    async with serve(database_url) as api:
        before = await api.get(f"/executions/{one}")
        logs = await api.get(f"/executions/{one}/logs")
        assert await protocol.delete_idle_queues() == 1
        assert await api.get(f"/executions/{one}") == before
        assert await api.get(f"/executions/{one}/logs") == logs
        listed = await api.get("/executions", action_ref="a", concurrency_key="x")
        assert [item["id"] for item in listed["items"]] == [one]
        cancelled = await api.http.post(f"/api/v1/executions/{one}/cancel")
        assert (cancelled.status_code, cancelled.json()["code"]) == (409, "already_terminal")
        again = await api.http.post(f"/api/v1/executions/{one}/retry")
        assert (again.status_code, again.json()["status"]) == (202, "scheduled")
        shown = await api.get(f"/executions/{again.json()['id']}")
        assert (shown["concurrency_key"], shown["retry_of"]) == ("x", one)
    assert await faults_in(database_url) == []


async def test_a_request_that_comes_again_after_its_queue_is_deleted_is_known(protocol: Protocol) -> None:
    await protocol.put("a", **KEYED, max_queued=0)
    repeated = request("a", parameters={"key": "x"}, idempotency_key="once")
    ((first,), _) = await protocol.admit(repeated)
    one = accepted(first).execution_id
    await protocol.run(one)
    await protocol.settle((one, 1))
    assert await protocol.delete_idle_queues() == 1
    ((verdict,), _) = await protocol.admit(repeated)
    again = accepted(verdict)
    assert (again.execution_id, again.status, again.duplicate) == (one, Status.COMPLETED, True)
    # The queue that the duplicate created is counted nowhere and is deleted too.
    assert await protocol.delete_idle_queues() == 1


async def test_late_messages_of_a_deleted_queue_change_nothing(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a", **KEYED)
    (one,) = await ended_with(protocol, "x", ttl=1e6)
    queue_id = (await protocol.queue("a", "x"))["id"]
    assert await protocol.delete_idle_queues() == 1
    freed = await protocol.settle((one, 1))
    assert (freed.count, freed.early, freed.unknown) == (0, set(), set())
    assert (await protocol.grant(queue_id)).granted == []
    assert await protocol.repair(queue_id) == ([], [])
    assert await protocol.claim_verdicts(one) == ["stale"]
    assert await protocol.hand_back(one) == set()
    # Its deadline is still there, and passes.
    await protocol.connection.execute("UPDATE expiring SET expires_at = '-infinity'")
    assert await protocol.expire_due() == []
    assert await protocol.status(one) == "completed"
    assert await faults_in(database_url) == []


async def test_an_execution_pruned_before_or_after_its_queue_is_counted_once(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await age(protocol, await ended_with(protocol, "x", "y", "x"), 5)
    late = await ended_with(protocol, "x", "y")
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == 3
    assert await faults_in(database_url) == []
    assert await protocol.delete_idle_queues() == 2
    assert await faults_in(database_url) == []
    await age(protocol, late, 5)
    young = await ended_with(protocol, "x", "z")
    assert await pruner(protocol, retention_age=HOUR).prune_executions() == 2
    assert await left(protocol) == young
    assert await faults_in(database_url) == []
    row = await protocol.row("SELECT executions, pruned FROM deleted_queue_total")
    assert tuple(row) == (5, 5)
    assert await protocol.column("SELECT executions FROM pruned_count") == []


async def test_the_retention_count_spans_deleted_queues(protocol: Protocol, database_url: str) -> None:
    await protocol.put("a", **KEYED)
    ids = await ended_with(protocol, "u", "v", "w", "x")
    await protocol.delete_idle_queues()
    ids += await ended_with(protocol, "u", "y")
    sweep = pruner(protocol, retention_count=3)
    assert await sweep.prune_executions() == 3
    assert await left(protocol) == ids[3:]
    await protocol.delete_idle_queues()
    assert await sweep.prune_executions() == 0
    assert await faults_in(database_url) == []


async def test_a_process_deletes_nothing_before_the_idle_time_or_with_unlimited_retention(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    await protocol.connection.execute("UPDATE queue_state SET updated_at = now() - interval '9 d'")

    def sweep(**settings: Any) -> Pruner:
        return pruner(protocol, **settings)

    early, never = sweep(), sweep(retention_idle_keys="forever")
    assert await early.delete_idle_queues() == 0
    monkeypatch.setattr(early, "_began_at", early._began_at - 2 * HOUR)
    monkeypatch.setattr(never, "_began_at", never._began_at - 9 * 86_400)
    assert await never.delete_idle_queues() == 0
    assert await early.delete_idle_queues() == 1


async def test_a_sweep_continues_where_the_last_one_stopped(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.executor.retention._QUEUES_MAX", 2)
    monkeypatch.setattr("turnstile.executor.retention._QUEUE_BATCHES_MAX", 2)
    await protocol.put("a", **KEYED)
    await ended_with(protocol, *(f"key-{number}" for number in range(7)))
    sweep = pruner(protocol, retention_idle_keys=0)
    assert [await sweep.delete_idle_queues() for _ in range(3)] == [4, 3, 0]


async def test_a_key_that_comes_back_is_estimated_by_its_own_past(
    protocol: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    for _ in range(9):
        await ended_with(protocol, "x")
    await protocol.connection.execute("UPDATE execution SET completed_at = scheduled_at + interval '60 s'")
    await ended_with(protocol, *(f"other-{number}" for number in range(20)))
    await protocol.delete_idle_queues()
    ids = await protocol.submit(parameters={"key": "x"}, count=12)
    await protocol.claim(ids[0])
    async with serve(database_url) as api:
        shown = await api.get(f"/executions/{ids[-1]}")
    begins = datetime.fromisoformat(shown["estimated_start"]["earliest"]) - datetime.now(UTC)
    assert begins > timedelta(seconds=250), "the runs of the other keys take no time at all"
