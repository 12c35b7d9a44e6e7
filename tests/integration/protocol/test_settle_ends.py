"""settle: an end that no slot bears is told until its own completion was heard, and counted once (P4).

An attempt that waits for its retry, or was handed back, frees its slot by a message that tells no end. That
message may come before the end, after it, and again; whoever ended the execution may have died before telling
anybody.
"""

from itertools import permutations

import pytest

from tests.integration.protocol.test_sweeps import make_expired
from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status

SLOT_MESSAGE, END = "slot message", "end"


async def wait_for_retry(protocol: Protocol, ref: str = "a") -> int:
    """Fail once, with a retry that is far off; the slot is not settled."""
    await protocol.put(ref, max_concurrent=1)
    (one,) = await protocol.submit(ref, ttl=7200)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=3600)
    return one


async def end_while_it_waits(protocol: Protocol, execution_id: int, how: Status) -> None:
    if how is Status.CANCELLED:
        await protocol.cancel(execution_id)
    else:
        await make_expired(protocol, execution_id)
        await protocol.expire_due()
    assert await protocol.status(execution_id) == how


async def is_to_be_told(protocol: Protocol, execution_id: int) -> bool:
    return execution_id in await protocol.due_completions()


async def totals(protocol: Protocol, ref: str = "a") -> tuple[int, list[int], list[int]]:
    return (await protocol.queue(ref))["total_completed"], await protocol.held(), await protocol.untold()


@pytest.mark.parametrize("how", [Status.CANCELLED, Status.EXPIRED])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_an_end_is_told_until_it_was_heard_whatever_slot_messages_come_before_and_after(
    protocol: Protocol, how: Status, before: int
) -> None:
    for after in sorted(set(permutations([SLOT_MESSAGE, SLOT_MESSAGE, END, END], 3))):
        ref = "-".join(after).replace(" ", "")
        one = await wait_for_retry(protocol, ref)
        for _ in range(before):
            await protocol.settle_as((one, 1, None))
        await end_while_it_waits(protocol, one, how)
        heard = False
        for message in after:
            # Whoever ended it has died; only the watchdog may tell it now.
            assert await is_to_be_told(protocol, one) is not heard, after
            await protocol.settle_as((one, 1, how if message is END else None))
            heard = heard or message is END
            assert (await protocol.queue(ref))["total_completed"] == heard, after
        assert heard, after
        assert not await is_to_be_told(protocol, one), after
        assert await totals(protocol, ref) == (1, [], []), after


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_an_end_and_slot_messages_in_one_batch_count_it_once(
    protocol: Protocol, order: tuple[int, ...]
) -> None:
    one = await wait_for_retry(protocol)
    await protocol.cancel(one)
    messages = [(one, 1, None), (one, 1, Status.CANCELLED), (one, 1, None)]
    freed = await protocol.settle_as(*(messages[i] for i in order))
    assert (freed.count, freed.early, freed.unknown) == (1, set(), set())
    assert await totals(protocol) == (1, [], [])


async def test_the_slot_of_an_attempt_before_the_end_is_free_before_the_end_was_heard(
    protocol: Protocol,
) -> None:
    one = await wait_for_retry(protocol)
    (two,) = await protocol.submit()
    await protocol.cancel(one)
    assert (await protocol.settle_as((one, 1, None))).granted == [two]
    assert await totals(protocol) == (0, [two], [one])
    assert (await protocol.settle_as((one, 1, Status.CANCELLED))).granted == []
    assert await totals(protocol) == (1, [two], [])


async def test_the_message_of_a_handed_back_attempt_is_no_proof_that_its_end_was_told(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    assert await protocol.hand_back(one) == {one}
    await protocol.cancel(one)
    assert (await protocol.settle_as((one, 1, None))).count == 0
    assert await is_to_be_told(protocol, one)
    assert (await protocol.settle_as((one, 1, Status.CANCELLED))).count == 1
    assert await totals(protocol) == (1, [], [])


@pytest.mark.parametrize(
    ("attempt", "told"),
    [(0, Status.CANCELLED), (2, Status.CANCELLED), (1, Status.FAILED), (1, Status.EXPIRED)],
)
async def test_neither_another_attempt_nor_another_end_is_proof_that_an_end_was_told(
    protocol: Protocol, attempt: int, told: Status
) -> None:
    one = await wait_for_retry(protocol)
    await protocol.settle_as((one, 1, None))
    await protocol.cancel(one)
    freed = await protocol.settle_as((one, attempt, told))
    assert (freed.count, freed.early, freed.unknown) == (0, set(), set())
    assert await totals(protocol) == (0, [], [one])


async def test_a_retry_that_was_woken_and_ended_in_line_is_told_too(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=0)
    assert (await protocol.settle_as((one, 1, None))).granted == [two]
    await protocol.wake_due()
    assert await protocol.line() == [one]
    await protocol.cancel(one)
    await protocol.settle_as((one, 1, None))
    assert await is_to_be_told(protocol, one)
    await protocol.settle_as((one, 1, Status.CANCELLED))
    assert await totals(protocol) == (1, [two], [])


async def test_a_service_of_the_version_before_settles_all_but_what_it_cannot_tell_apart(
    protocol: Protocol,
) -> None:
    """It says neither end nor slot message: an end after an attempt is told until a newer one heard it."""
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
