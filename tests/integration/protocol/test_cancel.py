"""cancel: ends what has not started, requests a running attempt to stop, keeps terminal ones (P3, P4)."""

from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status
from turnstile.executor.results import Move


def moves(found: list[Move]) -> list[tuple[str, str]]:
    return [(m.previous_status.value, m.status.value) for m in found]


async def test_a_cancel_at_head_middle_and_tail_keeps_the_order_of_the_rest(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=7)
    found = await protocol.cancel(ids[0], ids[3], ids[3], ids[6], 10**12)
    assert moves(found) == [("queued", "cancelled")] * 3
    rest = [ids[n] for n in (1, 2, 4, 5)]
    assert await protocol.waiting() == rest
    assert (await protocol.queue())["depth"] == 4
    assert await protocol.put(max_concurrent=None) == rest
    assert await protocol.unpublished() == [ids[0], ids[3], ids[6]]
    assert await protocol.cancel() == []


async def test_a_running_execution_gets_a_stop_request_and_continues(protocol: Protocol) -> None:
    (one,) = await protocol.start()
    (move,) = await protocol.cancel(one, reason="enough")
    assert (move.status, move.worker_id, move.attempt) == ("running", "worker-1", 1)
    requested = await protocol.execution(one)
    assert (requested["status"], requested["cancel_reason"]) == ("running", "enough")
    assert requested["cancel_requested_at"] is not None
    assert await protocol.finish_verdict(one, status=Status.CANCELLED) == "applied"


async def test_a_terminal_execution_stays_as_it_is(protocol: Protocol) -> None:
    statuses = Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED
    for one, status in zip(await protocol.start(len(statuses)), statuses, strict=True):
        await protocol.finish(one, status=status)
        before = dict(await protocol.execution(one))
        assert moves(await protocol.cancel(one)) == [(status.value, status.value)]
        assert dict(await protocol.execution(one)) == before


async def test_a_cancelled_execution_that_is_handed_back_does_not_start_again(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.cancel(one, reason="enough")
    assert await protocol.hand_back(one) == set()
    ended = await protocol.execution(one)
    assert (ended["status"], ended["error_message"]) == ("cancelled", "enough")
    assert await protocol.waiting() == [two]
    assert await protocol.attempts(one) == [(1, "worker-1", "cancelled")]
    assert await protocol.due_completions(3600) == [one]
    assert (await protocol.settle((one, 1))).granted == [two]


async def test_nine_hundred_cancels_of_a_queue_start_no_more_than_the_limit(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=1000)
    for start in range(0, 900, 100):
        await protocol.cancel(*ids[start : start + 100])
        assert len(await protocol.held()) <= 2
        settled = await protocol.settle(*((i, 1) for i in await protocol.held() if i < ids[start + 100]))
        assert settled.granted == sorted(settled.granted)
    assert await protocol.waiting() == ids[902:]
