"""settle: a completion frees exactly its slot, and counts its execution once (P1, P4).

An attempt that is delayed for its retry, or was handed back, frees its slot with a message that reports no
terminal status. That message may arrive before the completion of the execution, after it, and repeatedly; the
service that ended the execution may have died before it published the completion.
"""

from itertools import permutations, product

import pytest

from tests.integration.protocol.test_sweeps import make_expired
from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status

SLOT_MESSAGE, COMPLETION = "slot message", "completion"


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


async def test_a_settle_of_a_paused_action_grants_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.run(one)
    await protocol.put(max_concurrent=1, paused=True)
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.granted, await protocol.held()) == (1, [], [])
    assert await protocol.put(max_concurrent=1) == [two]


async def test_a_completion_before_its_finish_is_early_and_frees_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, _ = await protocol.submit(count=2)
    for _ in ("scheduled", "running"):
        settled = await protocol.settle((one, 1))
        assert (settled.count, settled.early) == (0, {one})
        await protocol.claim(one)
    assert (await protocol.settle((one, 2))).early == {one}
    assert await protocol.held() == [one]


async def test_a_completion_of_another_attempt_leaves_the_slot(protocol: Protocol) -> None:
    (one,) = await protocol.start(max_concurrent=1)
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    await protocol.run(one, attempt=2)
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.early) == (0, set())
    assert await protocol.held() == [one]
    assert (await protocol.settle((one, 2))).count == 1


async def test_one_batch_settles_many_queues_and_returns_the_rest(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.put("b", max_concurrent=2)
    a, b = await protocol.submit("a", 2), await protocol.submit("b", 4)
    await protocol.run(a[0], b[0])
    settled = await protocol.settle((b[0], 1), (10**12, 1), (b[1], 1), (a[0], 1), (a[0], 1))
    assert settled.count == 2
    assert (settled.early, settled.unknown) == ({b[1]}, {10**12})
    assert sorted(settled.granted) == [a[1], b[2]]
    assert await protocol.held() == [a[1], b[1], b[2]]
    assert (await protocol.settle()).count == 0


async def test_a_message_that_settles_nothing_grants_its_queue_beside_others(protocol: Protocol) -> None:
    """An attempt that was handed back has freed its slot before its message arrives."""
    await protocol.put("a", max_concurrent=1)
    await protocol.put("b", max_concurrent=1)
    (handed_back,), (ended, next_one) = await protocol.submit("a"), await protocol.submit("b", 2)
    await protocol.run(ended)
    await protocol.claim(handed_back)
    await protocol.hand_back(handed_back)
    settled = await protocol.settle((handed_back, 1), (ended, 1))
    assert (settled.count, sorted(settled.granted)) == (1, [handed_back, next_one])


# --- executions that end without a slot


async def wait_for_retry(protocol: Protocol, ref: str = "a") -> int:
    """Fail once, with a retry in an hour; the slot is not settled."""
    await protocol.put(ref, max_concurrent=1)
    (one,) = await protocol.submit(ref, ttl=7200)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=3600)
    return one


async def end_while_it_waits(protocol: Protocol, execution_id: int, status: Status) -> None:
    if status is Status.CANCELLED:
        await protocol.cancel(execution_id)
    else:
        await make_expired(protocol, execution_id)
        await protocol.expire_due()
    assert await protocol.status(execution_id) == status


async def is_due(protocol: Protocol, execution_id: int) -> bool:
    return execution_id in await protocol.due_completions()


async def totals(protocol: Protocol, ref: str = "a") -> tuple[int, list[int], list[int]]:
    return (await protocol.queue(ref))["total_completed"], await protocol.held(), await protocol.unpublished()


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
async def test_a_completion_is_repeated_until_it_is_consumed_whatever_slot_messages_arrive(
    protocol: Protocol, status: Status
) -> None:
    orders = sorted(set(permutations([SLOT_MESSAGE, SLOT_MESSAGE, COMPLETION, COMPLETION], 3)))
    for number, (before, after) in enumerate(product(range(3), orders)):
        ref = f"a{number}"
        one = await wait_for_retry(protocol, ref)
        for _ in range(before):
            await protocol.settle_as((one, 1, None))
        await end_while_it_waits(protocol, one, status)
        consumed = False
        for message in after:
            # The service that ended it has died: only the watchdog publishes the completion.
            assert await is_due(protocol, one) is not consumed, (before, after)
            await protocol.settle_as((one, 1, status if message is COMPLETION else None))
            consumed = consumed or message is COMPLETION
            assert (await protocol.queue(ref))["total_completed"] == consumed, (before, after)
        assert consumed, (before, after)
        assert not await is_due(protocol, one), (before, after)
        assert await totals(protocol, ref) == (1, [], []), (before, after)


async def test_a_completion_and_slot_messages_in_one_batch_count_it_once(protocol: Protocol) -> None:
    for ref, order in (("a", (0, 1, 2)), ("b", (2, 1, 0)), ("c", (1, 0, 2))):
        one = await wait_for_retry(protocol, ref)
        await protocol.cancel(one)
        messages = [(one, 1, None), (one, 1, Status.CANCELLED), (one, 1, None)]
        freed = await protocol.settle_as(*(messages[i] for i in order))
        assert (freed.count, freed.early, freed.unknown) == (1, set(), set())
        assert await totals(protocol, ref) == (1, [], [])


async def test_the_message_of_a_handed_back_attempt_is_no_completion(protocol: Protocol) -> None:
    (one,) = await protocol.start(max_concurrent=1)
    assert await protocol.hand_back(one) == {one}
    await protocol.cancel(one)
    assert (await protocol.settle_as((one, 1, None))).count == 0
    assert await is_due(protocol, one)
    assert (await protocol.settle_as((one, 1, Status.CANCELLED))).count == 1
    assert await totals(protocol) == (1, [], [])


async def test_a_completion_of_another_attempt_or_status_does_not_count(protocol: Protocol) -> None:
    one = await wait_for_retry(protocol)
    await protocol.settle_as((one, 1, None))
    await protocol.cancel(one)
    for attempt, status in (
        (0, Status.CANCELLED), (2, Status.CANCELLED), (1, Status.FAILED), (1, Status.EXPIRED),
    ):  # fmt: skip
        freed = await protocol.settle_as((one, attempt, status))
        assert (freed.count, freed.early, freed.unknown) == (0, set(), set())
        assert await totals(protocol) == (0, [], [one])


async def test_a_service_of_the_previous_version_settles_all_but_what_it_cannot_distinguish(
    protocol: Protocol,
) -> None:
    """It passes no status: a completion after an attempt is repeated until a newer service consumes it."""
    one = await wait_for_retry(protocol)
    await protocol.put("b", max_concurrent=0)
    (never_ran,) = await protocol.submit("b")
    await protocol.cancel(one, never_ran)
    query = "SELECT settled_ids FROM turnstile.settle($1, $2)"
    settled = await protocol.connection.fetchval(query, [one, never_ran], [1, 0])
    assert sorted(settled) == [one, never_ran]
    assert await totals(protocol) == (0, [], [one])
    assert (await protocol.settle((one, 1))).count == 1
    assert await totals(protocol) == (1, [], [])


async def test_only_a_settle_without_a_webhook_commits_without_waiting_for_the_disk(
    protocol: Protocol,
) -> None:
    for callback_url, commit in ((None, "off"), ("http://127.0.0.1:9/", "on")):
        await protocol.put(max_concurrent=1, callback_url=callback_url)
        (one,) = await protocol.submit()
        await protocol.run(one)
        async with protocol.transaction():
            assert (await protocol.settle((one, 1))).count == 1
            assert await protocol.column("SHOW synchronous_commit") == [commit], callback_url
        assert await protocol.column("SHOW synchronous_commit") == ["on"]


async def test_admissions_claims_ends_and_returns_wait_for_the_disk(protocol: Protocol) -> None:
    """What follows from them leaves the database at once: a crash must not undo what others have seen."""
    await protocol.put(max_concurrent=2)
    async with protocol.transaction():
        one, two = await protocol.submit(count=2)
        await protocol.run(one)
        assert await protocol.claim_verdicts(two) == ["claimed"]
        assert await protocol.hand_back(two) == {two}
        assert await protocol.column("SHOW synchronous_commit") == ["on"]


async def test_a_settle_that_a_crash_undoes_is_published_again_and_frees_its_slot_once(
    protocol: Protocol,
) -> None:
    """The broker has forgotten its completion, and has the offer of the next execution."""
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.run(one)
    async with protocol.undone():
        assert (await protocol.settle((one, 1))).granted == [two]
    assert await protocol.claim_verdicts(two) == ["unknown"]
    for _ in range(2):
        assert await protocol.due_completions() == [one]
    assert (await protocol.settle((one, 1), (one, 1))).granted == [two]
    assert await protocol.due_completions() == []
    assert await protocol.held() == [two]
