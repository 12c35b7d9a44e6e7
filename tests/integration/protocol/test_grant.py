"""grant: free slots go to the heads of the queues, never more than the limit (P1, P2)."""

from tests.support.protocol import Protocol, ids_in


async def drained(protocol: Protocol, ref: str, limit: int | None, count: int) -> list[list[int]]:
    """Admit while nothing starts, then run everything; returns the grants of each step."""
    await protocol.put(ref, max_concurrent=0)
    await protocol.submit(ref, count)
    steps = [await protocol.put(ref, max_concurrent=limit)]
    while steps[-1]:
        await protocol.run(*steps[-1])
        steps.append((await protocol.settle(*((i, 1) for i in steps[-1]))).granted)
    return steps[:-1]


async def two_queues(protocol: Protocol) -> list[int]:
    """Two queues with two waiting executions each; returns the ids of the queues."""
    for ref in "ab":
        await protocol.put(ref, max_concurrent=0)
        await protocol.submit(ref, 2)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = 1")
    return [(await protocol.queue(ref))["id"] for ref in "ab"]


async def test_a_queue_is_granted_in_the_order_of_ids_within_its_limit(protocol: Protocol) -> None:
    for limit, first_step in ((1, 1), (3, 3), (7, 7), (None, 20)):
        steps = await drained(protocol, f"limit-{limit}", limit, 20)
        granted = [i for step in steps for i in step]
        assert granted == sorted(granted)
        assert len(granted) == 20
        assert {len(step) for step in steps[:-1]} | {len(steps[0])} == {first_step}, limit


async def test_a_limit_of_zero_and_a_pause_start_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=3)
    queue = await protocol.queue()
    assert (await protocol.grant(queue["id"])).granted == []
    assert await protocol.put(max_concurrent=2, paused=True) == []
    assert (await protocol.grant(queue["id"])).granted == []
    assert (await protocol.held(), queue["depth"]) == ([], 3)
    assert await protocol.put(max_concurrent=2) == ids[:2]


async def test_more_than_a_thousand_are_granted_in_pages(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=2100)
    await protocol.connection.execute("UPDATE action_queue SET max_concurrent = NULL")
    pages, more = [], [(await protocol.queue())["id"]]
    while more:
        grants = await protocol.grant(*more)
        pages.append(ids_in(grants))
        more = [*grants.more_queue_ids]
    assert [len(page) for page in pages] == [1000, 1000, 100]
    assert [i for page in pages for i in page] == ids


async def test_only_the_given_queues_are_granted(protocol: Protocol) -> None:
    _, queue_id = await two_queues(protocol)
    assert [g.action_ref for g in (await protocol.grant(queue_id)).granted] == ["b"]
    assert (await protocol.grant()).granted == []
    assert (await protocol.grant(10**12)).granted == []


async def test_a_paused_queue_beside_an_open_one_starts_nothing(protocol: Protocol) -> None:
    paused, running = await two_queues(protocol)
    await protocol.connection.execute("UPDATE action_queue SET paused = true WHERE id = $1", paused)
    assert [g.action_ref for g in (await protocol.grant(paused, running)).granted] == ["b"]


async def test_slots_without_a_limit_count_when_one_is_set(protocol: Protocol) -> None:
    await protocol.put()
    first, second = await protocol.submit(count=2)
    await protocol.put(max_concurrent=3)
    await protocol.submit(count=3)
    assert ((await protocol.queue())["held"], len(await protocol.held())) == (3, 3)
    await protocol.run(first, second)
    assert len((await protocol.settle((first, 1), (second, 1))).granted) == 2
    assert (await protocol.queue())["held"] == 3


async def test_each_grant_is_a_new_attempt_with_its_times_pool_and_trace(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, pool="gpu")
    (one,) = await protocol.submit()
    await protocol.connection.execute("UPDATE execution SET traceparent = '00-trace'")
    granted = await protocol.execution(one)
    assert (granted["status"], granted["attempt"], granted["worker_id"]) == ("scheduled", 1, None)
    await protocol.claim(one)
    await protocol.hand_back(one)
    (grant,) = (await protocol.grant((await protocol.queue())["id"])).granted
    assert (grant.execution_id, grant.attempt, grant.pool, grant.traceparent) == (one, 2, "gpu", "00-trace")
    assert (await protocol.execution(one))["scheduled_at"] > granted["scheduled_at"]


async def test_of_a_queue_s_state_only_the_newest_version_is_kept(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.run(one)
    await protocol.settle((one, 1))
    assert await protocol.column("SELECT count(*) FROM queue_state") == [1]
    (three,) = await protocol.submit()
    await protocol.cancel(three)
    assert await protocol.column("SELECT count(*) FROM queue_state") == [1]
    await protocol.cancel(two)
    assert ((await protocol.queue())["depth"], (await protocol.queue())["held"]) == (0, 1)
    (four,) = await protocol.submit()
    assert await protocol.put(max_concurrent=2) == [four]
    assert await protocol.column("SELECT count(*) FROM queue_state") == [1]
