"""reclaim and stop_overdue: attempts of lost workers and overdue attempts end or run again (P3, P6, P7)."""

import re
from datetime import timedelta

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol
from turnstile.common.domain.durations import format_duration, format_elapsed
from turnstile.common.domain.states import Status


async def test_the_attempts_of_a_lost_worker_return_to_the_heads_and_are_granted_again(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=2)
    one, two, three = await protocol.submit(count=3)
    await protocol.claim(one, two)
    await protocol.lose_lease()
    reclaimed = await protocol.reclaim()
    assert (reclaimed.returned, reclaimed.ended) == ([one, two], {})
    assert reclaimed.granted == [one, two]
    assert await protocol.waiting() == [three]
    row = await protocol.execution(one)
    assert (row["status"], row["attempt"], row["reclaims"], row["failures"]) == ("scheduled", 2, 1, 0)
    assert await protocol.attempts(one) == [(1, "worker-1", "reclaimed")]


async def test_a_lost_worker_can_change_nothing(protocol: Protocol) -> None:
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


async def test_a_lease_that_was_valid_at_the_given_instant_is_not_reclaimed(protocol: Protocol) -> None:
    """The database did not answer between the health check and the statement: no worker could renew."""
    (one,) = await protocol.start()
    (as_of,) = await protocol.column("SELECT clock_timestamp() - interval '2 s'")
    await protocol.lose_lease()
    assert (await protocol.reclaim(as_of=as_of)).returned == []
    assert await protocol.renew() == (True, False)
    await protocol.lose_lease()
    assert (await protocol.reclaim(as_of=as_of + timedelta(seconds=3))).returned == [one]


async def test_only_the_running_attempts_of_the_lost_worker_are_reclaimed(protocol: Protocol) -> None:
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=4)
    mine, others, unclaimed, ended = await protocol.submit(count=4)
    await protocol.claim(mine, ended)
    await protocol.finish(ended)
    await protocol.claim(others, worker=OTHER_WORKER)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).returned == [mine]
    assert await protocol.statuses(others, unclaimed, ended) == ["running", "scheduled", "completed"]
    # A worker that stopped in good order keeps nothing either.
    await protocol.connection.execute("SELECT turnstile.sign_off($1)", OTHER_WORKER)
    assert (await protocol.reclaim()).returned == [others]


@pytest.mark.parametrize(
    ("is_cancelled", "policy", "status"),
    [(False, "abandon", "abandoned"), (True, "requeue", "cancelled"), (True, "abandon", "cancelled")],
)
async def test_an_execution_that_may_not_run_again_ends(
    protocol: Protocol, is_cancelled: bool, policy: str, status: str
) -> None:
    (one,) = await protocol.start(on_worker_lost=policy)
    if is_cancelled:
        await protocol.cancel(one, reason="enough")
    await protocol.lose_lease()
    assert (await protocol.reclaim()).ended == {one: status}
    message = (await protocol.execution(one))["error_message"]
    assert message == ("enough" if is_cancelled else "worker worker-1 was lost; reclaimed 0 times before")


async def test_a_reclaim_takes_a_limited_number_the_oldest_first(protocol: Protocol) -> None:
    ids = await protocol.start(5)
    await protocol.lose_lease()
    assert (await protocol.reclaim(limit=3)).returned == ids[:3]
    assert (await protocol.reclaim(limit=3)).returned == ids[3:]
    assert (await protocol.reclaim(limit=3)).returned == []


async def test_a_restarted_worker_of_the_same_name_does_not_keep_the_earlier_attempts(
    protocol: Protocol,
) -> None:
    (one,) = await protocol.start()
    await protocol.register("its next start")
    await protocol.lose_lease()
    assert (await protocol.reclaim()).returned == [one]


async def test_no_offer_is_repeated_before_the_cancel_message_of_the_lost_attempt_is_published(
    protocol: Protocol,
) -> None:
    """The executor that reclaimed it died after the commit, before it published the message."""
    one, two = await protocol.start(2, on_worker_lost="requeue")
    await protocol.cancel(two)
    await protocol.register(OTHER_WORKER)
    await protocol.lose_lease()
    assert (await protocol.reclaim()).granted == [one]
    await protocol.connection.execute("UPDATE slot SET offered_at = now() - interval '1 h'")
    assert await protocol.due_pools() == {}
    cancels = await protocol.due_cancels()
    assert cancels == [(one, 1, "worker-1"), (two, 1, "worker-1")]
    assert await protocol.due_cancels(60) == []
    await protocol.cancels_published(*cancels)
    assert await protocol.due_cancels() == []
    assert await protocol.missing_offers({"default": 0}) == [one]


# --- stop_overdue


async def let_time_pass(protocol: Protocol, seconds: float) -> None:
    await protocol.connection.execute(
        "UPDATE slot SET overdue_at = overdue_at - make_interval(secs => $1)", seconds
    )


async def sweep(protocol: Protocol) -> tuple[list[int], list[int]]:
    """Sweep with a grace of 10 s; return the executions that need a cancel message, and the ended ones."""
    requested, ended = await protocol.stop_overdue(10)
    return [m.execution_id for m in requested], [m.execution_id for m in ended]


async def test_an_attempt_without_a_timeout_is_never_overdue(protocol: Protocol) -> None:
    await protocol.start()
    await let_time_pass(protocol, 10**9)
    assert await sweep(protocol) == ([], [])


async def test_a_timeout_is_enforced_only_after_its_grace(protocol: Protocol) -> None:
    (one,) = await protocol.start(timeout=60)
    await let_time_pass(protocol, 60)
    assert await sweep(protocol) == ([], [])
    await let_time_pass(protocol, 10)
    (requested,), ended = await protocol.stop_overdue(10)
    assert (requested.execution_id, requested.attempt, requested.worker_id, ended) == (one, 1, "worker-1", [])


async def test_the_worker_gets_two_cancel_messages_and_then_the_attempt_ends_without_it(
    protocol: Protocol,
) -> None:
    await protocol.put(timeout=1, max_concurrent=1)
    one, two = await protocol.submit(count=2)
    await protocol.claim(one)
    await let_time_pass(protocol, 60)
    await protocol.connection.execute("UPDATE slot SET claimed_at = claimed_at - interval '93 s'")
    for _ in range(2):
        assert await sweep(protocol) == ([one], [])
        assert await sweep(protocol) == ([], [])
        await let_time_pass(protocol, 11)
    requested, ended = await protocol.stop_overdue(10)
    assert (requested, [(m.execution_id, m.status) for m in ended]) == ([], [(one, Status.TIMEOUT)])
    row = await protocol.execution(one)
    assert row["error_type"] == "Timeout"
    ran = re.fullmatch(
        r"it ran longer than its timeout of 1s and was ended by the executor after 1m(\d+)s; worker worker-1"
        r" did not stop it within the grace period of 10s after the last cancel message",
        row["error_message"],
    )
    assert ran is not None, row["error_message"]
    assert row["completed_at"] - row["started_at"] == pytest.approx(
        timedelta(seconds=60 + int(ran[1])), abs=timedelta(seconds=0.5)
    )
    assert await protocol.attempts(one) == [(1, "worker-1", "timeout")]
    # The slot waits for its settle, and the worker's own report is too late.
    assert await protocol.held() == [one]
    assert await protocol.finish_verdict(one, result_json="1") == "stale"
    assert (await protocol.settle((one, 1))).granted == [two]


async def test_a_lost_cancel_message_is_repeated_and_the_attempt_ends_as_cancelled(
    protocol: Protocol,
) -> None:
    (one,) = await protocol.start()
    await protocol.cancel(one, reason="enough")
    for _ in range(2):
        await let_time_pass(protocol, 11)
        assert await sweep(protocol) == ([one], [])
    await let_time_pass(protocol, 11)
    _, (ended,) = await protocol.stop_overdue(10)
    assert ended.status is Status.CANCELLED
    assert (await protocol.execution(one))["error_message"] == (
        "enough; worker worker-1 did not stop it within the grace period of 10s after the last cancel message"
    )


async def test_the_database_writes_durations_as_workers_do(protocol: Protocol) -> None:
    seconds = [0, 0.001, 0.05, 0.251, 1, 2.5, 5, 9.94, 59.9, 59.96, 60, 93.2, 3600, 5400, 86_400, 93_784.005]
    texts = await protocol.connection.fetch(
        "SELECT turnstile.duration_text(s) AS duration, turnstile.elapsed_text(s) AS elapsed"
        " FROM unnest($1::float8[]) WITH ORDINALITY n(s, number) ORDER BY number",
        seconds,
    )
    assert [row["duration"] for row in texts] == [format_duration(each) for each in seconds]
    assert [row["elapsed"] for row in texts] == [format_elapsed(each) for each in seconds]


async def test_a_repeated_cancel_does_not_postpone_the_end(protocol: Protocol) -> None:
    (one,) = await protocol.start()
    await protocol.cancel(one)
    await let_time_pass(protocol, 11)
    await protocol.cancel(one)
    assert await sweep(protocol) == ([one], [])


@pytest.mark.parametrize("how", ["finished", "handed back", "retried", "restarted"])
async def test_an_attempt_that_no_longer_runs_is_not_overdue(protocol: Protocol, how: str) -> None:
    (one,) = await protocol.start(timeout=60)
    await let_time_pass(protocol, 100)
    if how == "finished":
        await protocol.finish(one)
    elif how == "retried":
        await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=60)
    else:
        await protocol.hand_back(one)
    if how == "restarted":
        # The next attempt has its own timeout.
        await protocol.grant((await protocol.queue())["id"])
        await protocol.claim(one, attempt=2)
    assert await protocol.stop_overdue(cancels_max=0) == ([], [])


async def test_an_execution_that_another_session_holds_is_left_to_the_next_tick(
    protocol: Protocol, other: Protocol
) -> None:
    requested, ended = await protocol.start(2)
    await protocol.cancel(requested, ended)
    await protocol.connection.execute(
        "UPDATE slot SET overdue_at = now() - interval '1 h',"
        " cancels_sent = 2 * (execution_id = $1)::integer",
        ended,
    )
    async with protocol.transaction():
        await protocol.connection.execute("SELECT FROM execution WHERE id = $1 FOR NO KEY UPDATE", ended)
        assert await sweep(other) == ([requested], [])
    assert await sweep(other) == ([], [ended])


async def test_of_two_simultaneous_sweeps_one_sends_the_cancel_message(
    protocol: Protocol, other: Protocol
) -> None:
    (one,) = await protocol.start(timeout=1)
    await let_time_pass(protocol, 60)
    async with protocol.transaction():
        assert await sweep(protocol) == ([one], [])
        assert await sweep(other) == ([], [])
    assert await sweep(other) == ([], [])
    assert await protocol.column("SELECT cancels_sent FROM slot") == [1]
