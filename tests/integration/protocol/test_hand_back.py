"""hand_back: what a worker gives back stands at the head of its line again, under a new attempt (P2, P6)."""

from tests.integration.executor.reading import ids_in
from tests.support.protocol import OTHER_WORKER, Protocol


async def test_what_is_handed_back_starts_before_those_behind_it(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=3)
    ids = await protocol.submit(count=6)
    await protocol.claim(*ids[:3])
    assert await protocol.hand_back(ids[2], ids[0]) == {ids[0], ids[2]}
    assert await protocol.line() == [ids[0], ids[2], *ids[3:]]
    assert await protocol.held() == [ids[1]]
    queue = await protocol.queue()
    assert queue["depth"] == 5
    grants = await protocol.grant(queue["id"])
    assert [(g.execution_id, g.attempt) for g in grants.granted] == [(ids[0], 2), (ids[2], 2)]
    assert await protocol.attempts(ids[0]) == [(1, "worker-1", "handed_back")]


async def test_it_is_no_failure_and_no_reclaim(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.hand_back(one)
    back = await protocol.execution(one)
    assert (back["status"], back["worker_id"], back["failures"], back["reclaims"]) == ("queued", None, 0, 0)


async def test_only_what_this_worker_runs_under_this_attempt_goes_back(protocol: Protocol) -> None:
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3)
    mine, granted, ended, waiting = await protocol.submit(count=4)
    await protocol.claim(mine, ended)
    await protocol.finish(ended)
    assert await protocol.hand_back(mine, granted, ended, waiting, worker=OTHER_WORKER) == set()
    assert await protocol.hand_back(mine, attempt=2) == set()
    assert await protocol.hand_back(granted, ended, waiting, 10**12) == set()
    assert await protocol.hand_back() == set()
    assert await protocol.held() == [mine, granted, ended]


async def test_a_second_hand_back_changes_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.hand_back(one)
    assert await protocol.hand_back(one) == set()
    assert await protocol.line() == [one, two]
    assert (await protocol.queue())["depth"] == 2


async def test_a_worker_whose_lease_is_over_may_still_give_back(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.lose_lease()
    assert await protocol.hand_back(one) == {one}


async def test_its_deadline_for_the_start_counts_again(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit(ttl=3600)
    await protocol.claim(one)
    await protocol.connection.execute("DELETE FROM expiring")
    await protocol.hand_back(one)
    assert await protocol.column("SELECT execution_id FROM expiring") == [one]


async def test_a_free_slot_waits_for_no_event(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    ids = await protocol.submit(count=2)
    await protocol.claim(ids[0])
    await protocol.hand_back(ids[0])
    assert ids_in(await protocol.grant(*await protocol.idle_queues())) == ids[:1]
