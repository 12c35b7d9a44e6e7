"""A worker's write against the loss of its lease, stepped by hand: exactly one wins (P3, P6)."""

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol
from tests.support.stepping import blocked
from turnstile.common.domain.states import Status


async def test_a_claim_under_way_holds_off_the_loss_of_its_lease(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    transaction = protocol.transaction()
    await transaction.start()
    assert await protocol.claim_verdicts(one) == ["claimed"]
    # The lease runs out while the claim is not committed yet: not judged in this look, but in the next.
    (as_of,) = await other.column("SELECT clock_timestamp() + interval '1 h'")
    assert (await other.reclaim(as_of=as_of)).returned == []
    assert await other.column("SELECT lost_at FROM worker WHERE id = 'worker-1'") == [None]
    await transaction.commit()
    assert (await other.reclaim(as_of=as_of)).returned == [one]


async def test_a_claim_behind_the_loss_of_its_lease_claims_nothing(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.lose_lease()
    transaction = other.transaction()
    await transaction.start()
    await other.reclaim()
    claiming = await blocked(protocol, other, _renew_and_claim(protocol, one))
    await transaction.commit()
    assert await claiming == ((False, False), ["lease_over"])
    assert await protocol.status(one) == "scheduled"


async def _renew_and_claim(protocol: Protocol, execution_id: int) -> tuple[tuple[bool, bool], list[str]]:
    return await protocol.renew(), await protocol.claim_verdicts(execution_id)


@pytest.mark.parametrize("first", ["finish", "reclaim"])
async def test_of_finish_and_reclaim_exactly_one_wins(
    protocol: Protocol, other: Protocol, first: str
) -> None:
    await protocol.put(max_concurrent=1)
    one, _ = await protocol.submit(count=2)
    await protocol.claim(one)
    if first == "finish":
        transaction = protocol.transaction()
        await transaction.start()
        assert await protocol.finish_verdict(one, result_json="1") == "applied"
        (as_of,) = await other.column("SELECT clock_timestamp() + interval '1 h'")
        assert (await other.reclaim(as_of=as_of)).returned == []
        await transaction.commit()
        assert (await other.reclaim(as_of=as_of)).returned == []
        assert await protocol.status(one) == "completed"
        assert await protocol.attempts(one) == [(1, "worker-1", "completed")]
        return
    await protocol.lose_lease()
    transaction = other.transaction()
    await transaction.start()
    assert (await other.reclaim()).granted == [one]
    await transaction.commit()
    assert await protocol.finish_verdict(one, result_json="1") == "lease_over"
    row = await protocol.execution(one)
    assert (row["status"], row["attempt"], row["result"]) == ("scheduled", 2, None)
    assert await protocol.attempts(one) == [(1, "worker-1", "reclaimed")]


async def test_two_reclaims_of_one_orphan_take_it_back_once(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.lose_lease()
    await other.connection.execute("UPDATE worker SET lost_at = now() WHERE id = 'worker-1'")
    transaction = protocol.transaction()
    await transaction.start()
    assert (await protocol.reclaim()).granted == [one]
    late = await blocked(other, protocol, other.reclaim())
    await transaction.commit()
    second = await late
    assert (second.returned, second.ended, second.granted) == ([], {}, [])
    row = await protocol.execution(one)
    assert (row["attempt"], row["reclaims"]) == (2, 1)
    assert await protocol.held() == [one]


@pytest.mark.parametrize("first", ["finish", "stop_overdue"])
async def test_of_finish_and_an_enforced_stop_exactly_one_wins(
    protocol: Protocol, other: Protocol, first: str
) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.cancel(one)
    transaction = protocol.transaction()
    await transaction.start()
    if first == "finish":
        assert await protocol.finish_verdict(one, result_json="1") == "applied"
        # Held by the report: left to the next tick, which finds it ended.
        assert await other.stop_overdue(-1, asks_max=0) == ([], [])
        await transaction.commit()
        assert await other.stop_overdue(-1, asks_max=0) == ([], [])
        assert await protocol.status(one) == "completed"
    else:
        _, (ended,) = await protocol.stop_overdue(-1, asks_max=0)
        late_finish = await blocked(other, protocol, other.finish_verdict(one, result_json="1"))
        await transaction.commit()
        assert (ended.status, await late_finish) == (Status.CANCELLED, "stale")
        assert (await protocol.execution(one))["result"] is None
    assert len(await protocol.attempts(one)) == 1


async def test_the_other_worker_s_claims_do_not_wait_for_a_reclaim(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.lose_lease()
    async with protocol.transaction():
        assert (await protocol.reclaim()).returned == [one]
        assert await other.claim_verdicts(two, worker=OTHER_WORKER) == ["claimed"]
