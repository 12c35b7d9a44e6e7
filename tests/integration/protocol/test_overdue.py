"""stop_overdue: what should have stopped is stopped, with the worker's help or without it (P3, P7)."""

import pytest

from tests.support.protocol import Protocol
from turnstile.common.domain.states import Status


async def let_time_pass(protocol: Protocol, seconds: float) -> None:
    await protocol.connection.execute(
        "UPDATE slot SET overdue_at = overdue_at - make_interval(secs => $1)", seconds
    )


async def test_an_attempt_without_a_timeout_is_never_overdue(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await let_time_pass(protocol, 10**9)
    assert await protocol.stop_overdue() == ([], [])


async def test_a_timeout_is_enforced_only_after_its_grace(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await let_time_pass(protocol, 60)
    assert await protocol.stop_overdue(10) == ([], [])
    await let_time_pass(protocol, 10)
    (asked,), ended = await protocol.stop_overdue(10)
    assert (asked.execution_id, asked.attempt, asked.worker_id, ended) == (one, 1, "worker-1", [])


async def test_the_worker_is_told_twice_and_then_the_attempt_ends_without_it(protocol: Protocol) -> None:
    await protocol.put(timeout=1, max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await let_time_pass(protocol, 60)
    for _ in range(2):
        asked, ended = await protocol.stop_overdue(10)
        assert ([m.execution_id for m in asked], ended) == ([one], [])
        assert await protocol.stop_overdue(10) == ([], [])
        await let_time_pass(protocol, 11)
    asked, ended = await protocol.stop_overdue(10)
    assert (asked, [(m.execution_id, m.status) for m in ended]) == ([], [(one, Status.TIMEOUT)])
    row = await protocol.execution(one)
    assert row["error_type"] == "Timeout"
    assert (
        row["error_message"]
        == "it ran longer than its timeout of 1 seconds, and worker worker-1 did not stop it"
    )
    assert await protocol.attempts(one) == [(1, "worker-1", "timeout")]
    # The slot is settled like any other, and the worker's own report comes too late.
    assert await protocol.held() == [one]
    assert await protocol.finish_verdict(one, result_json="1") == "stale"
    assert (await protocol.settle((one, 1))).granted == [two]


async def test_a_stop_that_was_lost_is_told_again_and_ends_as_cancelled(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.cancel(one, reason="enough")
    for _ in range(2):
        await let_time_pass(protocol, 11)
        (asked,), _ = await protocol.stop_overdue(10)
        assert asked.execution_id == one
    await let_time_pass(protocol, 11)
    _, (ended,) = await protocol.stop_overdue(10)
    assert ended.status is Status.CANCELLED
    assert (await protocol.execution(one))["error_message"] == "enough; worker worker-1 did not stop it"


async def test_asking_again_to_stop_does_not_put_the_end_off(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await protocol.cancel(one)
    await let_time_pass(protocol, 11)
    await protocol.cancel(one)
    assert [m.execution_id for m in (await protocol.stop_overdue(10))[0]] == [one]


@pytest.mark.parametrize("how", ["finished", "handed back", "retried"])
async def test_what_is_no_longer_running_is_not_overdue(protocol: Protocol, how: str) -> None:
    await protocol.put(timeout=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await let_time_pass(protocol, 60)
    match how:
        case "finished":
            await protocol.finish(one)
        case "handed back":
            await protocol.hand_back(one)
        case _:
            await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=60)
    assert await protocol.stop_overdue(asks_max=0) == ([], [])


async def test_the_next_attempt_has_its_whole_timeout(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await let_time_pass(protocol, 100)
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    await protocol.claim(one, attempt=2)
    assert await protocol.stop_overdue() == ([], [])


async def test_an_execution_that_others_hold_is_left_to_the_next_tick(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put(max_concurrent=None)
    told, ended = await protocol.submit(count=2)
    await protocol.claim(told, ended)
    await protocol.cancel(told, ended)
    await protocol.connection.execute(
        "UPDATE slot SET overdue_at = now() - interval '1 h', stops_asked = 2 * (execution_id = $1)::integer",
        ended,
    )
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.connection.execute("SELECT FROM execution WHERE id = $1 FOR NO KEY UPDATE", ended)
    asked, over = await other.stop_overdue(10)
    assert ([m.execution_id for m in asked], over) == ([told], [])
    await transaction.commit()
    asked, over = await other.stop_overdue(10)
    assert (asked, [m.execution_id for m in over]) == ([], [ended])


async def test_of_two_sweeps_at_once_one_tells_the_worker(protocol: Protocol, other: Protocol) -> None:
    await protocol.put(timeout=1)
    (one,) = await protocol.submit()
    await protocol.claim(one)
    await let_time_pass(protocol, 60)
    transaction = protocol.transaction()
    await transaction.start()
    assert [m.execution_id for m in (await protocol.stop_overdue(10))[0]] == [one]
    assert await other.stop_overdue(10) == ([], [])
    await transaction.commit()
    assert await other.stop_overdue(10) == ([], [])
    assert await protocol.column("SELECT stops_asked FROM slot") == [1]
