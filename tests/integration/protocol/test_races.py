"""Two statements on the same rows at the same time: exactly one wins (P1, P3, P6)."""

import asyncio

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol, blocked, connected, ids_in, in_turn, offer
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.worker.protocol import Claim, Finished, Report
from turnstile.worker.protocol import Verdict as WorkerVerdict

_IN_AN_HOUR = "SELECT clock_timestamp() + interval '1 h'"


async def test_a_lower_limit_waits_for_the_grant_before_it_and_binds_the_one_after_it(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=10)
    granted, late = await in_turn(
        protocol, other, protocol.put(max_concurrent=4), other.put(max_concurrent=2)
    )
    assert (granted, late) == (ids[:4], [])
    await protocol.run(*granted)
    assert (await protocol.settle(*((i, 1) for i in granted))).granted == ids[4:6]


async def test_a_settle_after_a_limit_change_obeys_the_new_limit(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=6)
    await protocol.run(*ids[:2])
    _, settled = await in_turn(
        protocol, other, protocol.put(max_concurrent=1), other.settle((ids[0], 1), (ids[1], 1))
    )
    assert settled.granted == ids[2:3]


async def test_two_settles_of_one_completion_free_one_slot(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two, _ = await protocol.submit(count=3)
    await protocol.run(one)
    first, second = await in_turn(protocol, other, protocol.settle((one, 1)), other.settle((one, 1)))
    assert (first.count, first.granted) == (1, [two])
    assert (second.count, second.granted, second.early) == (0, [], set())
    assert await protocol.held() == [two]


@pytest.mark.parametrize("first", ["cancel", "grant"])
async def test_of_cancel_and_grant_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put(max_concurrent=1, paused=True)
    one, two = await protocol.submit(count=2)
    await protocol.connection.execute("UPDATE action_queue SET paused = false")
    queue_id = (await protocol.queue())["id"]
    if first == "cancel":
        _, grants = await in_turn(protocol, other, protocol.cancel(one), other.grant(queue_id))
        assert ids_in(grants) == [two]
        assert await protocol.unpublished() == [one]
    else:
        _, (move,) = await in_turn(protocol, other, protocol.grant(queue_id), other.cancel(one))
        assert (move.previous_status, move.status) == ("scheduled", "cancelled")
        # Its slot is free for the next execution only after its settle.
        assert (await protocol.held(), await protocol.waiting()) == ([one], [two])
        assert (await protocol.settle((one, 1))).granted == [two]


@pytest.mark.parametrize("first", ["cancel", "claim"])
async def test_of_cancel_and_claim_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    if first == "cancel":
        _, (claim,) = await in_turn(
            protocol, other, protocol.cancel(one), other.claim(one, worker=OTHER_WORKER)
        )
        assert (claim, await protocol.status(one)) == ("stale", "cancelled")
    else:
        _, (move,) = await in_turn(protocol, other, protocol.claim(one), other.cancel(one))
        assert (move.status, move.worker_id) == ("running", "worker-1")


@pytest.mark.parametrize("first", ["cancel", "finish"])
async def test_of_cancel_and_finish_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    (one,) = await protocol.start()
    if first == "cancel":
        # The attempt completed before it received the cancel message: its result is kept.
        _, (finished,) = await in_turn(protocol, other, protocol.cancel(one), other.finish(one))
        assert finished.verdict == "applied"
    else:
        _, (move,) = await in_turn(protocol, other, protocol.finish(one), other.cancel(one))
        assert move.status == "completed"
    assert await protocol.status(one) == "completed"


async def test_a_cancel_that_precedes_a_failure_leaves_no_retry(protocol: Protocol, other: Protocol) -> None:
    (one,) = await protocol.start()
    failure = other.finish(one, status=Status.FAILED, retry_delay_seconds=0)
    _, (finished,) = await in_turn(protocol, other, protocol.cancel(one), failure)
    assert finished.status == "failed"
    assert await protocol.column("SELECT execution_id FROM delayed") == []


@pytest.mark.parametrize("first", ["expire", "claim"])
async def test_of_expiry_and_claim_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put()
    (one,) = await protocol.submit(ttl=3600)
    # Due for the sweep, and still in time for the claim: the narrowest race.
    await protocol.connection.execute("UPDATE expiring SET expires_at = now() - interval '1 s'")
    if first == "expire":
        _, (claim,) = await in_turn(
            protocol, other, protocol.expire_due(), other.claim(one, worker=OTHER_WORKER)
        )
        assert (claim, await protocol.status(one)) == ("stale", "expired")
        return
    async with protocol.transaction():
        await protocol.claim(one)
        # The claim holds the row: the next tick finds it running.
        assert await other.expire_due() == []
    assert await other.expire_due() == []
    assert await protocol.status(one) == "running"


async def test_of_two_workers_that_claim_together_one_wins(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=20)
    mine, theirs = await asyncio.gather(
        protocol.claim(*ids), other.claim(*reversed(ids), worker=OTHER_WORKER)
    )
    won = [isinstance(claim, Claim) for claim in mine]
    lost = [isinstance(claim, Claim) for claim in reversed(theirs)]
    assert all(a != b for a, b in zip(won, lost, strict=True))


@pytest.mark.parametrize("first", ["hand_back", "finish"])
async def test_of_hand_back_and_finish_exactly_one_wins(
    protocol: Protocol, other: Protocol, first: str
) -> None:
    (one,) = await protocol.start()
    if first == "hand_back":
        _, (finished,) = await in_turn(protocol, other, protocol.hand_back(one), other.finish(one))
        assert (finished.verdict, await protocol.status(one)) == ("stale", "queued")
    else:
        _, back = await in_turn(protocol, other, protocol.finish(one), other.hand_back(one))
        assert (back, await protocol.status(one)) == (set(), "completed")


async def test_a_queue_created_beside_a_limit_change_has_the_new_limit(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put(max_concurrent=5)
    async with connected(database_url) as third:
        async with protocol.transaction():
            await protocol.submit(count=3)
            changing = await blocked(third, protocol, third.put(max_concurrent=1))
            admitting = await blocked(other, protocol, other.submit(count=3))
        await asyncio.gather(changing, admitting)
    queue, held = await protocol.queue(), await protocol.held()
    assert (queue["max_concurrent"], queue["depth"] + len(held)) == (1, 6)
    await protocol.run(*held)
    assert len((await protocol.settle(*((i, 1) for i in held))).granted) == 1


async def test_a_worker_s_batch_finishes_before_it_claims(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=None)
    older, younger = await protocol.submit(count=2)
    await protocol.claim(older)
    report = Report(
        execution_id=ExecutionId(older), attempt=Attempt(1), status=Status.COMPLETED, result_json="1"
    )
    async with protocol.transaction():
        await protocol.cancel(older)
        late = await blocked(other, protocol, other.record().exchange([offer(younger, 1), report]))
        # This cancel, in ascending order, would deadlock with a claim that came before the finish.
        await protocol.cancel(younger)
    claimed, finished = await late
    assert isinstance(finished, Finished)
    assert (claimed, finished.verdict) == (WorkerVerdict.STALE, WorkerVerdict.APPLIED)


# --- leases


async def test_a_claim_in_progress_delays_the_loss_of_its_lease(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    async with protocol.transaction():
        assert await protocol.claim_verdicts(one) == ["claimed"]
        # The lease expires before the claim commits: this sweep skips the worker, the next one does not.
        (as_of,) = await other.column(_IN_AN_HOUR)
        assert (await other.reclaim(as_of=as_of)).returned == []
        assert await other.column("SELECT lost_at FROM worker WHERE id = 'worker-1'") == [None]
    assert (await other.reclaim(as_of=as_of)).returned == [one]


async def test_a_claim_after_the_loss_of_its_lease_claims_nothing(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.lose_lease()

    async def renew_and_claim() -> tuple[tuple[bool, bool], list[str]]:
        return await protocol.renew(), await protocol.claim_verdicts(one)

    _, claim = await in_turn(other, protocol, other.reclaim(), renew_and_claim())
    assert claim == ((False, False), ["lease_over"])
    assert await protocol.status(one) == "scheduled"


@pytest.mark.parametrize("first", ["finish", "reclaim"])
async def test_of_finish_and_reclaim_exactly_one_wins(
    protocol: Protocol, other: Protocol, first: str
) -> None:
    await protocol.put(max_concurrent=1)
    one, _ = await protocol.submit(count=2)
    await protocol.claim(one)
    if first == "finish":
        async with protocol.transaction():
            assert await protocol.finish_verdict(one, result_json="1") == "applied"
            (as_of,) = await other.column(_IN_AN_HOUR)
            assert (await other.reclaim(as_of=as_of)).returned == []
        assert (await other.reclaim(as_of=as_of)).returned == []
        assert await protocol.status(one) == "completed"
        assert await protocol.attempts(one) == [(1, "worker-1", "completed")]
        return
    await protocol.lose_lease()
    assert (await other.reclaim()).granted == [one]
    assert await protocol.finish_verdict(one, result_json="1") == "lease_over"
    row = await protocol.execution(one)
    assert (row["status"], row["attempt"], row["result"]) == ("scheduled", 2, None)
    assert await protocol.attempts(one) == [(1, "worker-1", "reclaimed")]


async def test_two_reclaims_of_one_attempt_take_it_back_once(protocol: Protocol, other: Protocol) -> None:
    (one,) = await protocol.start(max_concurrent=1)
    await protocol.lose_lease()
    await other.connection.execute("UPDATE worker SET lost_at = now() WHERE id = 'worker-1'")
    first, second = await in_turn(protocol, other, protocol.reclaim(), other.reclaim())
    assert first.granted == [one]
    assert (second.returned, second.ended, second.granted) == ([], {}, [])
    row = await protocol.execution(one)
    assert (row["attempt"], row["reclaims"]) == (2, 1)
    assert await protocol.held() == [one]


@pytest.mark.parametrize("first", ["finish", "stop_overdue"])
async def test_of_finish_and_stop_overdue_exactly_one_wins(
    protocol: Protocol, other: Protocol, first: str
) -> None:
    (one,) = await protocol.start()
    await protocol.cancel(one)
    if first == "finish":
        async with protocol.transaction():
            assert await protocol.finish_verdict(one, result_json="1") == "applied"
            # The report holds the row: the next tick finds it terminal.
            assert await other.stop_overdue(-1, cancels_max=0) == ([], [])
        assert await other.stop_overdue(-1, cancels_max=0) == ([], [])
        assert await protocol.status(one) == "completed"
    else:
        (_, (ended,)), late = await in_turn(
            protocol,
            other,
            protocol.stop_overdue(-1, cancels_max=0),
            other.finish_verdict(one, result_json="1"),
        )
        assert (ended.status, late) == (Status.CANCELLED, "stale")
        assert (await protocol.execution(one))["result"] is None
    assert len(await protocol.attempts(one)) == 1


async def test_a_reclaim_does_not_block_the_claims_of_other_workers(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.lose_lease()
    async with protocol.transaction():
        assert (await protocol.reclaim()).returned == [one]
        assert await other.claim_verdicts(two, worker=OTHER_WORKER) == ["claimed"]


async def test_two_executors_that_start_together_create_one_state_of_the_default_pool(
    protocol: Protocol, other: Protocol
) -> None:
    refresh = "SELECT workers FROM turnstile.refresh_pools(NULL, '{}', '{}', true)"
    await in_turn(protocol, other, protocol.column(refresh), other.column(refresh))
    assert await protocol.column("SELECT count(*) FROM pool_state") == [1]
