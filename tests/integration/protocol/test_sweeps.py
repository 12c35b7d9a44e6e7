"""The watchdog's sweeps: what is due is done once, what is not is left (P2, P4, P7)."""

from datetime import UTC, datetime

import pytest

from tests.integration.executor.reading import ids_in
from tests.support.protocol import Protocol, connected
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


# --- wake_due -----------------------------------------------------------------------------------------


async def test_a_delayed_one_lets_others_pass_and_stands_by_its_id_when_due(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (delayed,) = await protocol.submit(run_at=LATER)
    one, two = await protocol.submit(count=2)
    assert await protocol.held() == [one]
    await make_due(protocol, delayed)
    woken, grants = await protocol.wake_due()
    assert [(m.execution_id, m.previous_status, m.status) for m in woken] == [(delayed, "delayed", "queued")]
    assert grants.granted == []
    assert await protocol.line() == [delayed, two]
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).granted == [delayed]


async def test_what_wakes_beside_a_free_slot_starts_at_once(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=3, run_at=LATER)
    await make_due(protocol, *ids)
    _, grants = await protocol.wake_due()
    assert ids_in(grants) == ids[:2]
    assert (await protocol.queue())["depth"] == 1


async def test_what_is_not_due_sleeps_on(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=2, run_at=LATER)
    woken, grants = await protocol.wake_due()
    assert (woken, grants.granted) == ([], [])
    assert await protocol.statuses(*ids) == ["delayed"] * 2


async def test_waking_takes_the_longest_due_first_and_no_more_than_asked(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=3, run_at=LATER)
    await make_due(protocol, *ids)
    await protocol.connection.execute(
        "UPDATE delayed SET due_at = due_at - interval '1 s' WHERE execution_id = $1", ids[2]
    )
    woken, _ = await protocol.wake_due(limit=1)
    assert [m.execution_id for m in woken] == [ids[2]]


async def test_a_retry_wakes_only_after_its_last_slot_is_settled(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=0)
    assert (await protocol.wake_due())[0] == []
    assert (await protocol.settle((one, 1))).granted == [two]
    assert len((await protocol.wake_due())[0]) == 1
    assert await protocol.line() == [one]
    await protocol.run(two)
    assert (await protocol.settle((two, 1))).granted == [one]
    assert await protocol.claim_verdicts(one, attempt=2) == ["claimed"]


# --- expire_due ---------------------------------------------------------------------------------------


async def test_what_does_not_start_in_time_expires_and_its_successor_runs(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    scheduled, queued = await protocol.submit(count=2, ttl=60)
    (delayed,) = await protocol.submit(ttl=60, run_at=LATER)
    (successor,) = await protocol.submit()
    await make_expired(protocol, scheduled, queued, delayed)
    moves = await protocol.expire_due()
    assert sorted((m.execution_id, m.previous_status.value, m.status.value) for m in moves) == [
        (scheduled, "scheduled", "expired"), (queued, "queued", "expired"), (delayed, "delayed", "expired"),
    ]  # fmt: skip
    ended = await protocol.execution(queued)
    assert ended["error_type"] == "Expired"
    assert "time to live" in ended["error_message"]
    assert await protocol.line() == [successor]
    assert await protocol.held() == [scheduled]
    assert await protocol.untold() == [queued, delayed]
    assert (await protocol.settle((scheduled, 1))).granted == [successor]
    await protocol.settle((queued, 0), (delayed, 0))
    assert (await protocol.queue())["total_completed"] == 3


async def test_what_runs_or_has_ended_does_not_expire(protocol: Protocol) -> None:
    await protocol.put()
    running, ended = await protocol.submit(count=2, ttl=60)
    await protocol.claim(running, ended)
    await protocol.finish(ended)
    await make_expired(protocol, running, ended)
    assert await protocol.expire_due() == []
    assert await protocol.statuses(running, ended) == ["running", "completed"]
    assert await protocol.column("SELECT * FROM expiring") == []


async def test_what_is_handed_back_after_its_deadline_expires(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    (one,) = await protocol.submit(ttl=60)
    await protocol.put(max_concurrent=1)
    await protocol.claim(one)
    await make_expired(protocol, one)
    await protocol.expire_due()
    await protocol.hand_back(one)
    assert [m.execution_id for m in await protocol.expire_due()] == [one]
    assert await protocol.untold() == [one]


async def test_what_has_time_left_waits_on(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=3, ttl=3600)
    await make_expired(protocol, ids[1])
    assert [m.execution_id for m in await protocol.expire_due()] == [ids[1]]
    assert await protocol.line() == [ids[0], ids[2]]


# --- due_offers ---------------------------------------------------------------------------------------


async def age(protocol: Protocol, column: str, seconds: float) -> None:
    await protocol.connection.execute(
        f"UPDATE slot SET {column} = {column} - make_interval(secs => $1)", float(seconds)
    )


async def test_what_nobody_claims_is_offered_again_after_the_timeout(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=3)
    ids = await protocol.submit(count=4)
    await protocol.claim(ids[0])
    assert await protocol.due_offers(30) == []
    await age(protocol, "granted_at", 31)
    await age(protocol, "offered_at", 31)
    assert await protocol.due_offers(30, limit=1) == [ids[1]]
    assert await protocol.due_offers(30) == [ids[2]]
    assert await protocol.due_offers(30) == []


async def test_the_wait_between_offers_grows_with_the_age_of_the_grant(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await age(protocol, "granted_at", 100)
    await age(protocol, "offered_at", 40)
    assert await protocol.due_offers(30) == []
    await age(protocol, "offered_at", 21)
    assert await protocol.due_offers(30) == [one]


async def test_the_wait_grows_to_ten_timeouts_and_no_further(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await age(protocol, "granted_at", 100_000)
    await age(protocol, "offered_at", 299)
    assert await protocol.due_offers(30) == []
    await age(protocol, "offered_at", 2)
    assert await protocol.due_offers(30) == [one]


@pytest.mark.parametrize("nobody", ["other pool", "lease over", "lost"])
async def test_without_a_live_worker_for_the_pool_nothing_is_offered_again(
    protocol: Protocol, nobody: str
) -> None:
    await protocol.put(pool="gpu" if nobody == "other pool" else "default")
    (one,) = await protocol.submit()
    if nobody == "lease over":
        await protocol.lose_lease()
    elif nobody == "lost":
        await protocol.connection.execute("UPDATE worker SET lost_at = now()")
    assert await protocol.due_offers() == []
    await protocol.register("late", pools=["x", "gpu", "default"])
    assert await protocol.due_offers() == [one]


async def test_what_has_ended_is_not_offered_again(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.cancel(one)
    assert await protocol.due_offers() == []


# --- due_completions, idle_queues ---------------------------------------------------------------------


async def test_an_end_that_is_not_settled_is_told_again_after_the_timeout(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ended, _, waiting = await protocol.submit(count=3)
    await protocol.run(ended)
    await protocol.cancel(waiting)
    assert await protocol.due_completions(30) == []
    await protocol.connection.execute("UPDATE slot SET told_at = told_at - interval '31 s'")
    await protocol.connection.execute("UPDATE untold_end SET told_at = told_at - interval '31 s'")
    assert await protocol.due_completions(30) == [ended, waiting]
    assert await protocol.due_completions(30) == []
    await protocol.settle((ended, 1), (waiting, 0))
    assert await protocol.due_completions(0) == []


async def test_a_queue_is_idle_only_where_a_free_slot_stands_beside_a_waiting_one(protocol: Protocol) -> None:
    for ref, limit, paused, count in (
        ("full", 1, False, 2), ("empty", 1, False, 0), ("paused", 2, True, 2), ("zero", 0, False, 2),
        ("idle", 2, False, 3), ("unlimited", None, False, 2),
    ):  # fmt: skip
        await protocol.put(ref, max_concurrent=limit, paused=True)
        await protocol.submit(ref, count)
        await protocol.connection.execute(
            "UPDATE action_queue SET paused = $2 WHERE action_id = (SELECT id FROM action WHERE ref = $1)",
            ref, paused,
        )  # fmt: skip
    await protocol.put("full", max_concurrent=1)
    idle = [(await protocol.queue(ref))["id"] for ref in ("idle", "unlimited")]
    assert await protocol.idle_queues() == idle
    await protocol.grant(*idle)
    assert await protocol.idle_queues() == []


async def test_two_replicas_share_what_is_due(protocol: Protocol, database_url: str) -> None:
    await protocol.put()
    ids = await protocol.submit(count=4)
    await protocol.run(*ids[:2])
    async with connected(database_url) as other, protocol.transaction():
        assert await protocol.due_offers(limit=1) == [ids[2]]
        assert await other.due_offers() == [ids[3]]
        assert await protocol.due_completions(limit=1) == [ids[0]]
        assert await other.due_completions() == [ids[1]]
