"""admit: a bounded line takes exactly what its bound says, and says the numbers."""

import pytest

from tests.support.protocol import Protocol, accepted, rejected, request
from turnstile.common.domain.errors import Code
from turnstile.executor.decisions import Accepted, Rejected


async def taken(protocol: Protocol, count: int, ref: str = "a") -> int:
    verdicts, _ = await protocol.admit(*(request(ref) for _ in range(count)))
    outcome = [isinstance(v, Accepted) for v in verdicts]
    assert outcome == sorted(outcome, reverse=True), "a later one was taken before an earlier one"
    assert all(v.code is Code.QUEUE_FULL for v in verdicts if isinstance(v, Rejected))
    return sum(outcome)


@pytest.mark.parametrize(("limit", "bound"), [(1, 3), (3, 0), (0, 2), (5, 5)])
async def test_one_batch_fills_the_slots_and_the_line_and_no_more(
    protocol: Protocol, limit: int, bound: int
) -> None:
    await protocol.put(max_concurrent=limit, max_queued=bound)
    assert await taken(protocol, 50) == limit + bound
    assert await taken(protocol, 3) == 0
    assert ((await protocol.queue())["depth"], len(await protocol.held())) == (bound, limit)


async def test_many_batches_fill_the_line_to_the_same_bound(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2, max_queued=5)
    assert sum([await taken(protocol, 3) for _ in range(5)]) == 7


async def test_when_full_reject_takes_only_what_starts_at_once(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2, when_full="reject")
    assert await taken(protocol, 5) == 2
    assert await protocol.line() == []


async def test_without_a_limit_everything_starts_and_nothing_is_refused(protocol: Protocol) -> None:
    await protocol.put("a", when_full="reject")
    await protocol.put("b", max_queued=1)
    assert await taken(protocol, 20) == 20
    assert await taken(protocol, 20, ref="b") == 20


async def test_a_paused_action_takes_only_its_line(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=5, max_queued=2, paused=True)
    assert await taken(protocol, 5) == 2


async def test_the_refusal_names_the_numbers(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=3, max_queued=2)
    await protocol.submit(count=5)
    (verdict,), _ = await protocol.admit(request())
    message = rejected(verdict).message
    assert "2 waiting of at most 2, 3 running of at most 3" in message


async def test_the_refusal_of_an_unlimited_paused_action_reads_well(protocol: Protocol) -> None:
    await protocol.put(max_queued=0, paused=True)
    (verdict,), _ = await protocol.admit(request())
    assert "0 waiting of at most 0, 0 running without a limit" in rejected(verdict).message


async def test_a_copy_of_what_is_known_takes_no_place(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, max_queued=2)
    verdicts, _ = await protocol.admit(*(request(idempotency_key=key) for key in "kkkl"))
    assert [accepted(v).duplicate for v in verdicts] == [False, True, True, False]
    (again, other), _ = await protocol.admit(request(idempotency_key="k"), request())
    assert accepted(again).duplicate
    assert rejected(other).code is Code.QUEUE_FULL


async def test_a_copy_of_what_is_refused_is_refused(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, max_queued=1)
    await protocol.submit()
    verdicts, _ = await protocol.admit(*(request(idempotency_key="k") for _ in range(3)))
    assert [rejected(v).code for v in verdicts] == [Code.QUEUE_FULL] * 3
    assert (await protocol.queue())["depth"] == 1


async def test_the_bound_counts_even_behind_a_refused_copy(protocol: Protocol) -> None:
    await protocol.put("keyed", max_concurrent=0, max_queued=0, concurrency_key="/who")
    verdicts, _ = await protocol.admit(
        request("keyed", idempotency_key="k"), request("keyed", idempotency_key="k", parameters={"who": "x"})
    )
    assert [rejected(v).code for v in verdicts] == [Code.INVALID_PARAMETERS, Code.QUEUE_FULL]


async def test_a_key_that_reads_like_a_number_is_nobody_s_copy(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, max_queued=1)
    verdicts, _ = await protocol.admit(request(idempotency_key="2"), request())
    assert [isinstance(v, Accepted) for v in verdicts] == [True, False]


async def test_one_full_line_does_not_refuse_for_another(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=0, max_queued=0)
    await protocol.put("b", max_concurrent=0)
    verdicts, _ = await protocol.admit(*(request(ref) for ref in "abab"))
    assert [isinstance(v, Accepted) for v in verdicts] == [False, True, False, True]


async def test_each_key_has_the_bound_for_itself(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, max_queued=1, concurrency_key="/who")
    verdicts, _ = await protocol.admit(*(request(parameters={"who": who}) for who in "xyxy"))
    assert [isinstance(v, Accepted) for v in verdicts] == [True, True, False, False]
