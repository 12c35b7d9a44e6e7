"""The sweeps of the watchdog: what is due is done once, and nothing else changes (P2, P4, P7)."""

from datetime import UTC, datetime

from tests.support.protocol import Protocol, ids_in
from turnstile.common.domain.states import Status

LATER = datetime(2100, 1, 1, tzinfo=UTC)


async def make_due(protocol: Protocol, *execution_ids: int) -> None:
    await protocol.connection.execute(
        "UPDATE delayed SET due_at = now() - interval '1 s' WHERE execution_id = ANY ($1)", execution_ids
    )


async def make_expired(protocol: Protocol, *execution_ids: int) -> None:
    for table, column in (("expiring", "execution_id"), ("execution", "id")):
        await protocol.connection.execute(
            f"UPDATE {table} SET expires_at = now() - interval '1 s' WHERE {column} = ANY ($1)", execution_ids
        )


# --- wake_due


async def test_a_delayed_execution_lets_others_pass_and_is_enqueued_by_its_id_when_due(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=1)
    (delayed,) = await protocol.submit(run_at=LATER)
    one, two = await protocol.submit(count=2)
    assert await protocol.held() == [one]
    assert (await protocol.wake_due())[0] == []
    await make_due(protocol, delayed)
    woken, grants = await protocol.wake_due()
    assert [(m.execution_id, m.previous_status, m.status) for m in woken] == [(delayed, "delayed", "queued")]
    assert grants.granted == []
    assert await protocol.waiting() == [delayed, two]
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).granted == [delayed]


async def test_due_executions_beside_free_slots_start_at_once(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=3, run_at=LATER)
    await make_due(protocol, *ids)
    _, grants = await protocol.wake_due()
    assert ids_in(grants) == ids[:2]
    assert (await protocol.queue())["depth"] == 1


async def test_the_longest_due_are_enqueued_first_up_to_the_given_number(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=3, run_at=LATER)
    await make_due(protocol, *ids)
    await protocol.connection.execute(
        "UPDATE delayed SET due_at = due_at - interval '1 s' WHERE execution_id = $1", ids[2]
    )
    woken, _ = await protocol.wake_due(limit=1)
    assert [m.execution_id for m in woken] == [ids[2]]


async def test_a_retry_is_enqueued_only_after_its_last_slot_is_settled(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=0)
    assert (await protocol.wake_due())[0] == []
    assert (await protocol.settle((one, 1))).granted == [two]
    assert len((await protocol.wake_due())[0]) == 1
    assert await protocol.waiting() == [one]
    await protocol.run(two)
    assert (await protocol.settle((two, 1))).granted == [one]
    assert await protocol.claim_verdicts(one, attempt=2) == ["claimed"]


# --- expire_due


async def test_executions_that_do_not_start_in_time_expire_and_the_next_one_runs(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    scheduled, queued = await protocol.submit(count=2, ttl=60)
    (delayed,) = await protocol.submit(ttl=60, run_at=LATER)
    (in_time,) = await protocol.submit(ttl=3600)
    (without_ttl,) = await protocol.submit()
    await make_expired(protocol, scheduled, queued, delayed)
    moves = await protocol.expire_due()
    assert {m.execution_id: m.previous_status for m in moves} == {
        scheduled: "scheduled",
        queued: "queued",
        delayed: "delayed",
    }
    assert {m.status for m in moves} == {Status.EXPIRED}
    ended = await protocol.execution(queued)
    assert ended["error_type"] == "Expired"
    assert "time to live" in ended["error_message"]
    assert await protocol.waiting() == [in_time, without_ttl]
    assert await protocol.held() == [scheduled]
    assert await protocol.unpublished() == [queued, delayed]
    assert (await protocol.settle((scheduled, 1))).granted == [in_time]
    await protocol.settle((queued, 0), (delayed, 0))
    assert (await protocol.queue())["total_completed"] == 3


# --- due_completions, grantable_queues


async def test_a_completion_that_is_not_settled_is_repeated_after_the_timeout(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ended, _, waiting = await protocol.submit(count=3)
    await protocol.run(ended)
    await protocol.cancel(waiting)
    assert await protocol.due_completions(30) == []
    for table in ("slot", "unpublished_completion"):
        await protocol.connection.execute(f"UPDATE {table} SET published_at = published_at - interval '31 s'")
    assert await protocol.due_completions(30) == [ended, waiting]
    assert await protocol.due_completions(30) == []
    await protocol.settle((ended, 1), (waiting, 0))
    assert await protocol.due_completions(0) == []


async def test_a_queue_is_grantable_only_with_a_free_slot_and_a_waiting_execution(protocol: Protocol) -> None:
    for ref, limit, paused, count in (
        ("full", 1, False, 2), ("empty", 1, False, 0), ("paused", 2, True, 2), ("zero", 0, False, 2),
        ("free", 2, False, 3), ("unlimited", None, False, 2),
    ):  # fmt: skip
        await protocol.put(ref, max_concurrent=limit, paused=True)
        await protocol.submit(ref, count)
        await protocol.connection.execute(
            "UPDATE action_queue SET paused = $2 WHERE action_id = (SELECT id FROM action WHERE ref = $1)",
            ref, paused,
        )  # fmt: skip
    await protocol.put("full", max_concurrent=1)
    grantable = [(await protocol.queue(ref))["id"] for ref in ("free", "unlimited")]
    assert await protocol.grantable_queues() == grantable
    await protocol.grant(*grantable)
    assert await protocol.grantable_queues() == []


async def test_two_replicas_share_the_due_rows(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=4)
    await protocol.run(*ids[:2])
    async with protocol.transaction():
        assert await protocol.missing_offers({"default": 0}, limit=1) == [ids[2]]
        assert await other.missing_offers({"default": 0}) == [ids[3]]
        assert await protocol.due_completions(limit=1) == [ids[0]]
        assert await other.due_completions() == [ids[1]]


# --- drifted_queues, repair_queues


async def test_correct_counters_are_no_drift_even_beside_an_open_admission(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.put("b", concurrency_key="/key")
    await protocol.submit(count=3)
    await protocol.submit("b", 2, parameters={"key": 1})
    async with other.transaction():
        await other.submit(count=3)
        assert await protocol.drifted_queues() == []


async def test_wrong_counters_are_repaired(protocol: Protocol) -> None:
    for drift in (
        "queue_state SET depth = depth + 1",
        "queue_state SET depth = 0",
        "queue_state SET held = 0",
        "queue_state SET held = held + 1, granted_limit = NULL",
        "queue_state SET head_id = head_id + 100",
        "action_queue SET max_concurrent = 7",
        "action_queue SET paused = true",
    ):
        await protocol.put(max_concurrent=1)
        one, two, three = await protocol.submit(count=3)
        queue_id = (await protocol.queue())["id"]
        await protocol.connection.execute(f"UPDATE {drift}")
        assert await protocol.drifted_queues() == [queue_id], drift
        assert await protocol.repair(queue_id) == ([queue_id], [])
        assert await protocol.drifted_queues() == []
        assert await protocol.repair(queue_id) == ([], [])
        for granted, following in ((one, [two]), (two, [three]), (three, [])):
            await protocol.run(granted)
            assert (await protocol.settle((granted, 1))).granted == following, drift


async def test_a_repair_grants_what_a_wrong_depth_held_up(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    one, two = await protocol.submit(count=2)
    await protocol.connection.execute("UPDATE queue_state SET depth = 0")
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    await protocol.connection.execute("UPDATE action SET max_concurrent = 1")
    queue_id = (await protocol.queue())["id"]
    assert (await protocol.grant(queue_id)).granted == []
    assert await protocol.repair(queue_id) == ([queue_id], [one])
    assert await protocol.waiting() == [two]


async def test_the_recount_continues_after_the_last_queue(protocol: Protocol) -> None:
    await protocol.put(concurrency_key="/key")
    for key in range(5):
        await protocol.submit(parameters={"key": key})
    await protocol.connection.execute("UPDATE queue_state SET depth = depth + 1")
    queue_ids = await protocol.column("SELECT id FROM turnstile.current_queue ORDER BY id")
    assert await protocol.drifted_queues(limit=2) == queue_ids[:2]
    assert await protocol.drifted_queues(queue_ids[1], limit=2) == queue_ids[2:4]
    row = await protocol.row("SELECT * FROM turnstile.drifted_queues($1, 2)", queue_ids[3])
    assert (row["queue_ids"], row["next_id"]) == (queue_ids[4:], 0)
