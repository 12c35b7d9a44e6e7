"""Two statements at once on the same execution or line: exactly one wins (P1, P3, P6)."""

import asyncio

import pytest

from tests.integration.executor.reading import ids_in
from tests.support.protocol import OTHER_WORKER, Protocol, connected, offer
from tests.support.stepping import blocked
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.worker.record import Claim, Finished, Report
from turnstile.worker.record import Verdict as Said


async def test_a_lower_limit_waits_for_the_grant_before_it_and_binds_the_one_after_it(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=10)
    transaction = protocol.transaction()
    await transaction.start()
    granted = await protocol.put(max_concurrent=4)
    late = await blocked(other, protocol, other.put(max_concurrent=2))
    await transaction.commit()
    assert (granted, await late) == (ids[:4], [])
    await protocol.run(*granted)
    assert (await protocol.settle(*((i, 1) for i in granted))).granted == ids[4:6]


async def test_a_settle_behind_a_limit_change_obeys_the_new_limit(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=6)
    await protocol.run(*ids[:2])
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.put(max_concurrent=1)
    late = await blocked(other, protocol, other.settle((ids[0], 1), (ids[1], 1)))
    await transaction.commit()
    assert (await late).granted == ids[2:3]


async def test_two_settles_of_one_end_free_one_slot(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two, _ = await protocol.submit(count=3)
    await protocol.run(one)
    transaction = protocol.transaction()
    await transaction.start()
    first = await protocol.settle((one, 1))
    late = await blocked(other, protocol, other.settle((one, 1)))
    await transaction.commit()
    second = await late
    assert (first.count, first.granted) == (1, [two])
    assert (second.count, second.granted, second.early) == (0, [], set())
    assert await protocol.held() == [two]


@pytest.mark.parametrize("first", ["cancel", "grant"])
async def test_of_cancel_and_grant_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put(max_concurrent=1, paused=True)
    one, two = await protocol.submit(count=2)
    await protocol.connection.execute("UPDATE action_queue SET paused = false")
    queue_id = (await protocol.queue())["id"]
    transaction = protocol.transaction()
    await transaction.start()
    if first == "cancel":
        await protocol.cancel(one)
        granting = await blocked(other, protocol, other.grant(queue_id))
        await transaction.commit()
        assert ids_in(await granting) == [two]
        assert await protocol.untold() == [one]
    else:
        await protocol.grant(queue_id)
        cancelling = await blocked(other, protocol, other.cancel(one))
        await transaction.commit()
        (move,) = await cancelling
        assert (move.previous_status, move.status) == ("scheduled", "cancelled")
        # Its slot is settled like that of any other end, and only then granted on.
        assert (await protocol.held(), await protocol.line()) == ([one], [two])
        assert (await protocol.settle((one, 1))).granted == [two]


@pytest.mark.parametrize("first", ["cancel", "claim"])
async def test_of_cancel_and_claim_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    transaction = protocol.transaction()
    await transaction.start()
    if first == "cancel":
        await protocol.cancel(one)
        claiming = await blocked(other, protocol, other.claim(one, worker=OTHER_WORKER))
        await transaction.commit()
        assert (await claiming)[0] == "stale"
        assert await protocol.status(one) == "cancelled"
    else:
        await protocol.claim(one)
        cancelling = await blocked(other, protocol, other.cancel(one))
        await transaction.commit()
        (move,) = await cancelling
        assert (move.status, move.worker_id) == ("running", "worker-1")


@pytest.mark.parametrize("first", ["cancel", "finish"])
async def test_of_cancel_and_finish_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    transaction = protocol.transaction()
    await transaction.start()
    if first == "cancel":
        await protocol.cancel(one)
        finishing = await blocked(other, protocol, other.finish(one))
        await transaction.commit()
        # Asked to stop, it had come to its end already: the result is kept.
        assert (await finishing)[0].verdict == "applied"
    else:
        await protocol.finish(one)
        cancelling = await blocked(other, protocol, other.cancel(one))
        await transaction.commit()
        assert (await cancelling)[0].status == "completed"
    assert await protocol.status(one) == "completed"


async def test_a_cancel_that_a_failing_attempt_had_to_wait_for_leaves_no_retry(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.cancel(one)
    finishing = await blocked(other, protocol, other.finish(one, status=Status.FAILED, retry_delay_seconds=0))
    await transaction.commit()
    assert (await finishing)[0].status == "failed"
    assert await protocol.column("SELECT execution_id FROM delayed") == []


@pytest.mark.parametrize("first", ["expire", "claim"])
async def test_of_expiry_and_claim_exactly_one_wins(protocol: Protocol, other: Protocol, first: str) -> None:
    await protocol.put()
    (one,) = await protocol.submit(ttl=3600)
    # Due for the sweep, and still in time for the claim: the narrowest race.
    await protocol.connection.execute("UPDATE expiring SET expires_at = now() - interval '1 s'")
    transaction = protocol.transaction()
    await transaction.start()
    if first == "expire":
        await protocol.expire_due()
        claiming = await blocked(other, protocol, other.claim(one, worker=OTHER_WORKER))
        await transaction.commit()
        assert (await claiming)[0] == "stale"
        assert await protocol.status(one) == "expired"
    else:
        await protocol.claim(one)
        # Held by the claim: left to the next tick, which finds it running.
        assert await other.expire_due() == []
        await transaction.commit()
        assert await other.expire_due() == []
        assert await protocol.status(one) == "running"


async def test_of_two_workers_at_once_one_wins(protocol: Protocol, other: Protocol) -> None:
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
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    transaction = protocol.transaction()
    await transaction.start()
    if first == "hand_back":
        await protocol.hand_back(one)
        finishing = await blocked(other, protocol, other.finish(one))
        await transaction.commit()
        assert (await finishing)[0].verdict == "stale"
        assert await protocol.status(one) == "queued"
    else:
        await protocol.finish(one)
        handing = await blocked(other, protocol, other.hand_back(one))
        await transaction.commit()
        assert await handing == set()
        assert await protocol.status(one) == "completed"


async def test_a_line_born_beside_a_limit_change_has_the_new_limit(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put(max_concurrent=5)
    async with connected(database_url) as third:
        transaction = protocol.transaction()
        await transaction.start()
        await protocol.submit(count=3)
        changing = await blocked(third, protocol, third.put(max_concurrent=1))
        admitting = await blocked(other, protocol, other.submit(count=3))
        await transaction.commit()
        await asyncio.gather(changing, admitting)
    queue = await protocol.queue()
    assert (queue["max_concurrent"], queue["depth"] + len(await protocol.held())) == (1, 6)
    await protocol.run(*await protocol.held())
    assert len((await protocol.settle(*((i, 1) for i in await protocol.held()))).granted) == 1


async def test_a_line_born_behind_an_uncommitted_limit_change_has_the_new_limit(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=5)
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.put(max_concurrent=1)
    admitting = await blocked(other, protocol, other.submit(count=3))
    await transaction.commit()
    await admitting
    assert ((await protocol.queue())["max_concurrent"], len(await protocol.held())) == (1, 1)


async def test_a_worker_s_batch_ends_what_ran_before_it_claims_anything(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=None)
    older, younger = await protocol.submit(count=2)
    await protocol.claim(older)
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.cancel(older)
    report = Report(
        execution_id=ExecutionId(older),
        attempt=Attempt(1),
        status=Status.COMPLETED,
        result_json="1",
    )
    late = await blocked(other, protocol, other.record().exchange([offer(younger, 1), report]))
    # A cancel of both, which takes them in ascending order, would wait for ever otherwise.
    await protocol.cancel(younger)
    await transaction.commit()
    claimed, finished = await late
    assert isinstance(finished, Finished)
    assert (claimed, finished.verdict) == (Said.STALE, Said.APPLIED)
