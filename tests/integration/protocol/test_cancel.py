"""cancel: what has not started ends at once, what runs is asked to stop, what has ended stays (P3, P4)."""

from datetime import UTC, datetime

import pytest

from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status
from turnstile.executor.decisions import Move

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def moves(found: list[Move]) -> list[tuple[str, str]]:
    return [(m.previous_status.value, m.status.value) for m in found]


async def test_at_head_middle_and_tail_it_leaves_the_order_of_the_rest(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    ids = await protocol.submit(count=7)
    found = await protocol.cancel(ids[0], ids[3], ids[6])
    assert moves(found) == [("queued", "cancelled")] * 3
    rest = [ids[n] for n in (1, 2, 4, 5)]
    assert await protocol.line() == rest
    assert (await protocol.queue())["depth"] == 4
    assert await protocol.put(max_concurrent=None) == rest
    assert await protocol.untold() == [ids[0], ids[3], ids[6]]


async def test_what_is_delayed_ends_and_never_wakes(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit(run_at=LATER)
    assert moves(await protocol.cancel(one)) == [("delayed", "cancelled")]
    assert await protocol.column("SELECT execution_id FROM delayed") == []
    assert await protocol.untold() == [one]


async def test_what_is_granted_ends_and_keeps_its_slot_until_it_is_settled(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    assert moves(await protocol.cancel(one)) == [("scheduled", "cancelled")]
    assert await protocol.held() == [one]
    assert await protocol.claim_verdicts(one) == ["stale"]
    assert await protocol.untold() == []
    settled = await protocol.settle((one, 1))
    assert (settled.count, settled.granted) == (1, [two])


async def test_what_runs_is_asked_to_stop_and_runs_on(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    (move,) = await protocol.cancel(one, reason="enough")
    assert (move.status, move.worker_id, move.attempt) == ("running", "worker-1", 1)
    asked = await protocol.execution(one)
    assert (asked["status"], asked["cancel_reason"]) == ("running", "enough")
    assert asked["cancel_requested_at"] is not None
    assert await protocol.finish_verdict(one, status=Status.CANCELLED) == "applied"


@pytest.mark.parametrize("end", [Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED])
async def test_what_has_ended_stays_as_it_is(protocol: Protocol, end: Status) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.finish(one, status=end)
    before = dict(await protocol.execution(one))
    assert moves(await protocol.cancel(one)) == [(end.value, end.value)]
    assert dict(await protocol.execution(one)) == before


async def test_a_second_cancel_changes_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    (one,) = await protocol.submit()
    await protocol.cancel(one, reason="first")
    before = dict(await protocol.execution(one))
    assert moves(await protocol.cancel(one, one, reason="second")) == [("cancelled", "cancelled")]
    assert dict(await protocol.execution(one)) == before
    assert (before["error_type"], before["error_message"]) == ("Cancelled", "first")
    assert (await protocol.queue())["depth"] == 0


async def test_what_does_not_exist_is_left_out(protocol: Protocol) -> None:
    assert await protocol.cancel(10**12) == []
    assert await protocol.cancel() == []


async def test_what_was_asked_to_stop_does_not_start_again_when_it_is_handed_back(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await protocol.cancel(one, reason="enough")
    assert await protocol.hand_back(one) == set()
    ended = await protocol.execution(one)
    assert (ended["status"], ended["error_message"]) == ("cancelled", "enough")
    assert await protocol.line() == [two]
    assert await protocol.attempts(one) == [(1, "worker-1", "cancelled")]
    assert await protocol.due_completions(3600) == [one]
    assert (await protocol.settle((one, 1))).granted == [two]


async def test_a_cancelled_deadline_expires_nothing(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    (one,) = await protocol.submit(ttl=0.001)
    await protocol.cancel(one)
    await protocol.connection.execute("UPDATE expiring SET expires_at = now() - interval '1 s'")
    assert await protocol.expire_due() == []
    assert await protocol.status(one) == "cancelled"
    assert await protocol.column("SELECT execution_id FROM expiring") == []


async def test_a_line_of_a_thousand_cancelled_in_a_loop_starts_no_more_than_the_limit(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=2)
    ids = await protocol.submit(count=1000)
    for start in range(0, 900, 100):
        await protocol.cancel(*ids[start : start + 100])
        assert len(await protocol.held()) <= 2
        settled = await protocol.settle(*((i, 1) for i in await protocol.held() if i < ids[start + 100]))
        assert settled.granted == sorted(settled.granted)
    assert await protocol.line() == ids[902:]
