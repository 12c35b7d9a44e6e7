"""settle: a slot is freed once, by the completion of its own attempt, and granted on (P1, P4)."""

from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status


async def test_a_settled_slot_goes_to_the_head_of_the_line(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two, three = await protocol.submit(count=3)
    await protocol.run(one)
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.granted) == (1, [two])
    assert await protocol.line() == [three]
    queue = await protocol.queue()
    assert (queue["depth"], queue["total_completed"]) == (1, 1)


async def test_ten_copies_free_one_slot_together_or_one_by_one(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two, *_ = await protocol.submit(count=5)
    await protocol.run(one)
    settled = await protocol.settle(*[(one, 1)] * 10)
    assert (settled.count, settled.granted, settled.early | settled.unknown) == (1, [two], set())
    for _ in range(10):
        settled = await protocol.settle((one, 1))
        assert (settled.count, settled.granted, settled.early) == (0, [], set())
    assert await protocol.held() == [two]
    assert (await protocol.queue())["total_completed"] == 1


async def test_a_completion_from_before_its_finish_is_early_and_frees_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, _ = await protocol.submit(count=2)
    for _ in ("scheduled", "running"):
        settled = await protocol.settle((one, 1))
        assert (settled.count, settled.early) == (0, {one})
        await protocol.claim(one)
    assert (await protocol.settle((one, 2))).early == {one}
    assert await protocol.held() == [one]


async def test_a_completion_of_an_unknown_execution_is_named(protocol: Protocol) -> None:
    settled = await protocol.settle((10**12, 1))
    assert (settled.count, settled.unknown, settled.early) == (0, {10**12}, set())


async def test_a_completion_of_another_attempt_leaves_the_slot(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    await protocol.run(one, attempt=2)
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.early) == (0, set())
    assert await protocol.held() == [one]
    assert (await protocol.settle((one, 2))).count == 1


async def test_a_completion_of_one_frees_nothing_of_another(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    one, two = await protocol.submit(count=2)
    await protocol.run(one, two)
    assert (await protocol.settle((two, 1))).count == 1
    assert await protocol.held() == [one]


async def test_one_batch_settles_many_lines_and_names_the_rest(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.put("b", max_concurrent=2)
    a, b = await protocol.submit("a", 2), await protocol.submit("b", 4)
    await protocol.run(a[0], b[0])
    settled = await protocol.settle((b[0], 1), (10**12, 1), (b[1], 1), (a[0], 1), (a[0], 1))
    assert settled.count == 2
    assert (settled.early, settled.unknown) == ({b[1]}, {10**12})
    assert sorted(settled.granted) == [a[1], b[2]]


async def test_an_empty_batch_is_nothing(protocol: Protocol) -> None:
    settled = await protocol.settle()
    assert (settled.count, settled.granted) == (0, [])


async def test_a_retry_frees_its_slot_and_is_no_end(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=60)
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.granted) == (1, [two])
    assert (await protocol.queue())["total_completed"] == 0


async def test_an_end_without_a_slot_is_settled_once_too(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    (one,) = await protocol.submit()
    await protocol.cancel(one)
    assert await protocol.untold() == [one]
    assert [(await protocol.settle((one, 0))).count for _ in range(3)] == [1, 0, 0]
    assert await protocol.untold() == []
    assert (await protocol.queue())["total_completed"] == 1


async def test_settling_never_grants_past_the_limit_or_the_pause(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=3)
    ids = await protocol.submit(count=6)
    await protocol.run(*ids[:3])
    await protocol.put(max_concurrent=2)
    assert (await protocol.settle((ids[0], 1))).granted == []
    assert (await protocol.settle((ids[1], 1))).granted == [ids[3]]
    await protocol.put(max_concurrent=2, paused=True)
    assert (await protocol.settle((ids[2], 1))).granted == []
