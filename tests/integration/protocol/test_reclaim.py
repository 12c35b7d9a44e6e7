"""reclaim: a lost worker's work goes back to the heads of its lines, or ends (P2, P6, P7)."""

from datetime import timedelta

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol


async def test_the_work_of_a_lost_worker_goes_to_the_heads_and_is_granted_anew(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    one, two, three = await protocol.submit(count=3)
    await protocol.claim(one, two)
    await protocol.lose_lease()
    reclaimed = await protocol.reclaim()
    assert (reclaimed.returned, reclaimed.ended) == ([one, two], {})
    assert reclaimed.granted == [one, two]
    assert await protocol.line() == [three]
    row = await protocol.execution(one)
    assert (row["status"], row["attempt"], row["reclaims"], row["failures"]) == ("scheduled", 2, 1, 0)
    assert await protocol.attempts(one) == [(1, "worker-1", "reclaimed")]


async def test_a_lost_worker_can_change_nothing_any_more(protocol: Protocol) -> None:
    await protocol.put()
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.lose_lease()
    await protocol.reclaim()
    assert await protocol.renew() == (False, False)
    assert await protocol.finish_verdict(one) == "lease_over"
    assert await protocol.claim_verdicts(two) == ["lease_over"]
    assert await protocol.hand_back(one) == set()
    assert await protocol.statuses(one, two) == ["scheduled", "scheduled"]


async def test_a_lease_that_was_good_at_the_judged_moment_is_left_alone(protocol: Protocol) -> None:
    """The database stood still between the look and the statement: nobody could renew meanwhile."""
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    (as_of,) = await protocol.column("SELECT clock_timestamp() - interval '2 s'")
    await protocol.lose_lease()
    assert (await protocol.reclaim(as_of=as_of)).returned == []
    assert await protocol.renew() == (True, False)
    await protocol.lose_lease()
    assert (await protocol.reclaim(as_of=as_of + timedelta(seconds=3))).returned == [one]


async def test_a_worker_that_signed_off_leaves_nothing_behind(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.connection.execute("SELECT turnstile.sign_off('worker-1')")
    assert (await protocol.reclaim()).returned == [one]


async def test_only_the_lost_worker_s_claims_go_back(protocol: Protocol) -> None:
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=4)
    mine, others, unclaimed, ended = await protocol.submit(count=4)
    await protocol.claim(mine, ended)
    await protocol.finish(ended)
    await protocol.claim(others, worker=OTHER_WORKER)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).returned == [mine]
    assert await protocol.statuses(others, unclaimed, ended) == ["running", "scheduled", "completed"]


async def test_what_was_reclaimed_too_often_is_abandoned_and_keeps_its_slot_until_it_is_settled(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=1, max_reclaims=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).granted == [one]
    await protocol.register(OTHER_WORKER)
    await protocol.claim(one, attempt=2, worker=OTHER_WORKER)
    await protocol.lose_lease(OTHER_WORKER)
    reclaimed = await protocol.reclaim()
    assert (reclaimed.returned, reclaimed.ended, reclaimed.granted) == ([], {one: "abandoned"}, [])
    assert [outcome for *_, outcome in await protocol.attempts(one)] == ["reclaimed", "abandoned"]
    assert (await protocol.settle((one, 2))).granted == [two]


@pytest.mark.parametrize(
    ("asked_to_stop", "policy", "end"),
    [(False, "abandon", "abandoned"), (True, "requeue", "cancelled"), (True, "abandon", "cancelled")],
)
async def test_what_may_not_run_again_ends(
    protocol: Protocol, asked_to_stop: bool, policy: str, end: str
) -> None:
    await protocol.put(on_worker_lost=policy)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    if asked_to_stop:
        await protocol.cancel(one, reason="enough")
    await protocol.lose_lease()
    assert (await protocol.reclaim()).ended == {one: end}
    row = await protocol.execution(one)
    assert row["error_message"] == (
        "enough" if asked_to_stop else "worker worker-1 was lost; 0 reclaims before"
    )


async def test_reclaims_are_paced(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=5)
    await protocol.claim(*ids)
    await protocol.lose_lease()
    assert (await protocol.reclaim(limit=3)).returned == ids[:3]
    assert (await protocol.reclaim(limit=3)).returned == ids[3:]
    assert (await protocol.reclaim(limit=3)).returned == []


async def test_a_worker_that_restarts_under_the_same_name_does_not_keep_the_old_one_s_work(
    protocol: Protocol,
) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.register("its next start")
    await protocol.lose_lease()
    assert (await protocol.reclaim()).returned == [one]


async def test_no_offer_is_repeated_before_the_lost_worker_was_told_to_stop(protocol: Protocol) -> None:
    """Whoever reclaimed died between the commit and the word."""
    await protocol.put(on_worker_lost="requeue")
    one, two = await protocol.submit(count=2)
    await protocol.claim(one, two)
    await protocol.cancel(two)
    await protocol.register(OTHER_WORKER)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).granted == [one]
    assert await protocol.due_offers(-1) == []
    assert await protocol.due_stops() == [(one, 1, "worker-1"), (two, 1, "worker-1")]
    assert await protocol.due_stops(60) == []
    await protocol.stops_told((one, 1), (two, 1))
    assert await protocol.due_stops() == []
    assert await protocol.due_offers(-1) == [one]
