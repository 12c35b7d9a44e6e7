"""claim, append_logs, finish, hand_back: an attempt belongs to one worker with a live lease (P1, P3, P6)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.cases import named
from tests.support.protocol import OTHER_WORKER, WORKER, Protocol, ids_in, offer, request
from turnstile.common.domain.states import Status
from turnstile.worker.logs import LogPiece
from turnstile.worker.protocol import Claim, Finished, Offer, Report


@pytest.fixture
async def granted(protocol: Protocol) -> list[int]:
    """Three granted executions, and a second worker."""
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3)
    return await protocol.submit(count=3)


@pytest.fixture
async def running(protocol: Protocol) -> list[int]:
    """Three running executions and a waiting one, and a second worker."""
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3, retry={"max_attempts": 3})
    ids = await protocol.submit(count=4)
    await protocol.claim(*ids[:3])
    return ids


async def next_attempt(protocol: Protocol, execution_id: int, worker: str = WORKER) -> None:
    """Hand the first attempt back and start the second one."""
    await protocol.hand_back(execution_id)
    await protocol.grant((await protocol.queue())["id"])
    assert await protocol.claim_verdicts(execution_id, attempt=2, worker=worker) == ["claimed"]


async def snapshot(protocol: Protocol) -> list[str]:
    return await protocol.column(
        "SELECT row_to_json(e)::text FROM execution e UNION ALL SELECT row_to_json(s)::text FROM slot s"
        " UNION ALL SELECT row_to_json(a)::text FROM attempt a"
    )


async def test_a_call_without_offers_and_reports_reads_nothing(protocol: Protocol) -> None:
    # Workers of the previous version call it for ends and for offers, and often have only one kind.
    assert await protocol.claim() == [], "planned before it is measured"
    async with protocol.transaction():
        assert (await cost_of(protocol, protocol.claim())).pages == 0


# --- claim


async def test_a_repeated_claim_returns_the_same_and_changes_nothing(
    protocol: Protocol, granted: list[int]
) -> None:
    first = await protocol.claim(granted[0])
    before = await snapshot(protocol)
    assert await protocol.claim(granted[0]) == first
    assert await snapshot(protocol) == before


async def test_only_the_granted_attempt_can_be_claimed(protocol: Protocol, granted: list[int]) -> None:
    one = granted[0]
    await protocol.claim(one)
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    assert await protocol.claim_verdicts(one, attempt=1, worker=OTHER_WORKER) == ["stale"]
    assert await protocol.claim_verdicts(one, attempt=3, worker=OTHER_WORKER) == ["unknown"]
    assert await protocol.status(one) == "scheduled"
    assert await protocol.claim_verdicts(one, attempt=2, worker=OTHER_WORKER) == ["claimed"]


async def test_one_batch_of_claims_may_get_every_verdict(protocol: Protocol, granted: list[int]) -> None:
    (waiting,) = await protocol.submit()
    await protocol.claim(granted[1], worker=OTHER_WORKER)
    await protocol.run(granted[2])
    # Of what waits no grant is known: the offer is ahead of the database.
    verdicts = await protocol.claim_verdicts(granted[2], 10**12, granted[1], granted[0], waiting)
    assert verdicts == ["stale", "unknown", "stale", "claimed", "unknown"]
    assert await protocol.claim_verdicts(granted[0], attempt=2) == ["unknown"]


async def test_without_a_live_lease_nothing_is_claimed(protocol: Protocol, granted: list[int]) -> None:
    for worker in ("lease over", "signed off", "lost"):
        await protocol.register(worker)
    await protocol.lose_lease("lease over")
    await protocol.connection.execute("SELECT turnstile.sign_off('signed off')")
    await protocol.connection.execute("UPDATE worker SET lost_at = now() WHERE id = 'lost'")
    for worker in ("never registered", "lease over", "signed off", "lost"):
        assert await protocol.claim_verdicts(*granted, worker=worker) == ["lease_over"] * 3, worker
        assert await protocol.statuses(*granted) == ["scheduled"] * 3


async def test_an_execution_cannot_be_claimed_after_its_deadline(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit(ttl=60)
    await protocol.connection.execute("UPDATE execution SET expires_at = clock_timestamp()")
    assert await protocol.claim_verdicts(one) == ["stale"]
    assert await protocol.status(one) == "scheduled"


async def test_a_claim_returns_everything_that_the_run_needs(protocol: Protocol) -> None:
    retry_policy = {"max_attempts": 3, "delay": 2, "factor": 4, "max_delay": 9, "jitter": 0.5}
    await protocol.put("tool", runner="command", entrypoint=["wc", "-w"], timeout=7, retry=retry_policy)
    await protocol.admit(request("tool", parameters={"x": [1, None]}))
    (one,) = await protocol.held()
    (claim,) = await protocol.claim(one)
    assert isinstance(claim, Claim)
    assert (claim.action_ref, claim.runner, claim.entrypoint_json) == ("tool", "command", '["wc", "-w"]')
    assert (claim.parameters_json, claim.timeout_seconds, claim.failures) == ('{"x": [1, null]}', 7.0, 0)
    retry = claim.retry
    assert (retry.max_attempts, retry.delay_seconds, retry.factor) == (3, 2.0, 4.0)
    assert (retry.max_delay_seconds, retry.jitter) == (9.0, 0.5)


async def test_an_expired_lease_can_be_renewed_until_the_worker_is_lost(protocol: Protocol) -> None:
    await protocol.lose_lease()
    assert await protocol.renew() == (True, False)
    await protocol.connection.execute("UPDATE worker SET draining_at = now()")
    assert await protocol.renew() == (True, True)
    await protocol.connection.execute("UPDATE worker SET lost_at = now()")
    assert await protocol.renew() == (False, False)
    # An id is registered only once.
    await protocol.register()
    assert await protocol.renew() == (False, False)


# --- append_logs


async def append(protocol: Protocol, *pieces: tuple[int, int, int, str], worker: str = WORKER) -> bool:
    """Append (execution id, attempt, start, text)."""
    offered = [(offer(i, attempt), LogPiece(start=start, text=text)) for i, attempt, start, text in pieces]
    return await protocol.record(worker).append_logs(offered)


async def stored(protocol: Protocol) -> Sequence[tuple[int, int, int, str]]:
    rows = await protocol.connection.fetch(
        "SELECT execution_id, attempt, start, text FROM attempt_log ORDER BY 1, 2, 3"
    )
    return [tuple(row) for row in rows]


async def test_log_pieces_of_running_attempts_are_stored_once(protocol: Protocol, running: list[int]) -> None:
    one, two = running[:2]
    for _ in range(2):
        assert await append(protocol, (one, 1, 0, "a\n"), (two, 1, 0, "b\n"))
    assert await append(protocol, (one, 1, 2, "c\n"))
    assert await stored(protocol) == [(one, 1, 0, "a\n"), (one, 1, 2, "c\n"), (two, 1, 0, "b\n")]


async def test_only_the_worker_with_a_live_lease_that_holds_an_attempt_may_append(
    protocol: Protocol, running: list[int]
) -> None:
    one, two = running[:2]
    assert await append(protocol, (one, 1, 0, "a\n"), worker=OTHER_WORKER)
    assert await append(protocol, (one, 2, 0, "a\n"), (one + 1000, 1, 0, "a\n"))
    await protocol.finish(two)
    assert await append(protocol, (two, 1, 0, "late\n"))
    await protocol.lose_lease()
    assert not await append(protocol, (one, 1, 0, "a\n"))
    assert await stored(protocol) == []


async def test_the_oldest_log_pieces_are_deleted_and_the_rest_comes_with_the_finish(
    protocol: Protocol, running: list[int]
) -> None:
    one = running[0]
    text = "x" * 999 + "\n"
    for number in range(100):
        assert await append(protocol, (one, 1, number * 1000, text))
    assert [start for _, _, start, _ in await stored(protocol)] == list(range(34_000, 100_000, 1000))
    await protocol.finish(one, log="b\n", log_start=100_000)
    (row,) = await protocol.connection.fetch("SELECT log, log_start FROM turnstile.ended_attempt")
    assert tuple(row) == ("b\n", 100_000)


# --- finish


async def test_an_attempt_ends_as_reported(protocol: Protocol) -> None:
    statuses = Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED
    for one, status in zip(await protocol.start(len(statuses)), statuses, strict=True):
        result = '{"words": [1, "é"]}' if status is Status.COMPLETED else None
        (finished,) = await protocol.finish(one, status=status, result_json=result, log="a line")
        ended = await protocol.execution(one)
        assert (finished.verdict, finished.status) == ("applied", status)
        assert finished.ended_at == ended["completed_at"]
        assert (ended["status"], ended["result"]) == (status, result)
        assert ended["error_type"] == (None if status is Status.COMPLETED else "Broken")
        assert ended["failures"] == (status is Status.FAILED)
        assert await protocol.attempts(one) == [(1, "worker-1", status.value)]
    assert await protocol.column("SELECT log FROM turnstile.ended_attempt") == ["a line"] * len(statuses)


async def test_a_repeated_report_changes_nothing_and_is_published_again(
    protocol: Protocol, running: list[int]
) -> None:
    (first,) = await protocol.finish(running[0], result_json="1", log="a line")
    before = await snapshot(protocol)
    (second,) = await protocol.finish(running[0], result_json="2", log="a line")
    assert (second.verdict, second.status, second.ended_at) == ("already", "completed", first.ended_at)
    assert await snapshot(protocol) == before


@pytest.mark.parametrize("worker", [WORKER, OTHER_WORKER])
async def test_a_late_report_of_a_reclaimed_attempt_changes_nothing(
    protocol: Protocol, running: list[int], worker: str
) -> None:
    await next_attempt(protocol, running[0], worker)
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0], attempt=1, log="a line") == "stale"
    assert await snapshot(protocol) == before
    assert await protocol.finish_verdict(running[0], attempt=2, worker=worker) == "applied"


async def test_a_report_of_what_the_worker_does_not_run_is_stale(
    protocol: Protocol, running: list[int]
) -> None:
    await protocol.finish(running[1], status=Status.CANCELLED)
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0], worker=OTHER_WORKER) == "stale"
    # Another outcome than the stored one; a queued execution; an unknown one.
    finished = await protocol.finish(running[1], running[3], 10**12, result_json="1")
    assert [(f.verdict, f.status) for f in finished] == [
        ("stale", "cancelled"),
        ("stale", "queued"),
        ("stale", None),
    ]
    assert await snapshot(protocol) == before


async def test_a_report_after_the_lease_changes_nothing_until_the_lease_is_renewed(
    protocol: Protocol, running: list[int]
) -> None:
    await protocol.lose_lease()
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0]) == "lease_over"
    assert await snapshot(protocol) == before
    await protocol.renew()
    assert await protocol.finish_verdict(running[0]) == "applied"


async def test_reports_beside_one_that_is_refused_are_applied(protocol: Protocol, running: list[int]) -> None:
    finished = await protocol.finish(running[0], 10**12, running[1], log="a line")
    assert [f.verdict for f in finished] == ["applied", "stale", "applied"]
    assert await protocol.column("SELECT log FROM turnstile.ended_attempt") == ["a line"] * 2


async def test_only_a_terminal_status_can_be_reported(protocol: Protocol, running: list[int]) -> None:
    before = await snapshot(protocol)
    call = "SELECT turnstile.finish('worker-1', $1, '{1}', $2, '{null}', '{E}', '{m}', '{null}', '{null}')"
    for status in ("running", "queued", "scheduled", "no such state"):
        refused = pytest.raises((asyncpg.CheckViolationError, asyncpg.InvalidTextRepresentationError))
        with named(status), refused:
            await protocol.connection.fetch(call, [running[0]], [status])
        assert await snapshot(protocol) == before, status


async def test_a_retry_is_delayed_and_counted(protocol: Protocol, running: list[int]) -> None:
    one = running[0]
    (finished,) = await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=30)
    again = await protocol.execution(one)
    assert (finished.verdict, finished.status) == ("applied", "delayed")
    assert (again["status"], again["failures"], again["completed_at"]) == ("delayed", 1, None)
    delays = await protocol.column(
        "SELECT extract(epoch FROM d.due_at - s.finished_at)::float"
        " FROM delayed d JOIN slot s ON s.execution_id = d.execution_id"
    )
    assert delays == [30.0]
    assert await protocol.attempts(one) == [(1, "worker-1", "retried")]
    assert one in await protocol.held()


async def test_no_retry_exceeds_the_time_to_live(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=2, ttl=60)
    await protocol.claim(*ids)
    (sooner,) = await protocol.finish(ids[0], status=Status.FAILED, retry_delay_seconds=30)
    (later,) = await protocol.finish(ids[1], status=Status.FAILED, retry_delay_seconds=90)
    assert (sooner.status, later.status) == ("delayed", "failed")


async def test_a_cancelled_attempt_has_the_reason_of_its_cancel_request(
    protocol: Protocol, running: list[int]
) -> None:
    requested, not_requested = running[:2]
    await protocol.cancel(requested, reason="enough")
    await protocol.finish(requested, not_requested, status=Status.CANCELLED)
    assert (await protocol.execution(requested))["error_message"] == "enough"
    assert (await protocol.execution(not_requested))["error_message"] == "it broke"


async def test_the_delay_of_a_retry_is_at_most_ten_years(protocol: Protocol) -> None:
    delays = 1e12, 1e300, float("inf"), float("nan")
    for one, seconds in zip(await protocol.start(len(delays)), delays, strict=True):
        (finished,) = await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=seconds)
        assert (finished.verdict, finished.status) == ("applied", "delayed")
        run_at = await protocol.connection.fetchval("SELECT run_at FROM execution WHERE id = $1", one)
        assert run_at < datetime.now(UTC) + timedelta(days=3661)


# --- hand_back


async def test_handed_back_executions_start_before_those_behind_them(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=3)
    ids = await protocol.submit(count=6, ttl=3600)
    await protocol.claim(*ids[:3])
    await protocol.connection.execute("DELETE FROM expiring")
    assert await protocol.hand_back(ids[2], ids[0]) == {ids[0], ids[2]}
    assert await protocol.hand_back(ids[2], ids[0]) == set()
    assert await protocol.waiting() == [ids[0], ids[2], *ids[3:]]
    assert await protocol.held() == [ids[1]]
    assert (await protocol.queue())["depth"] == 5
    back = await protocol.execution(ids[0])
    assert (back["status"], back["worker_id"], back["failures"], back["reclaims"]) == ("queued", None, 0, 0)
    # The deadline of the start counts again, and the sweep finds the free slots.
    assert await protocol.column("SELECT execution_id FROM expiring ORDER BY 1") == [ids[0], ids[2]]
    grants = await protocol.grant(*await protocol.grantable_queues())
    assert ids_in(grants) == [ids[0], ids[2]]
    assert {g.attempt for g in grants.granted} == {2}
    assert await protocol.attempts(ids[0]) == [(1, "worker-1", "handed_back")]


async def test_only_the_running_attempts_of_this_worker_are_handed_back(protocol: Protocol) -> None:
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3)
    mine, granted, ended, waiting = await protocol.submit(count=4)
    await protocol.claim(mine, ended)
    await protocol.finish(ended)
    assert await protocol.hand_back(mine, granted, ended, waiting, worker=OTHER_WORKER) == set()
    assert await protocol.hand_back(mine, attempt=2) == set()
    assert await protocol.hand_back(granted, ended, waiting, 10**12) == set()
    assert await protocol.held() == [mine, granted, ended]
    # A lease is not necessary.
    await protocol.lose_lease()
    assert await protocol.hand_back(mine) == {mine}


# --- batches of claims and reports


def report(execution_id: int, result_json: str) -> Report:
    claimed = offer(execution_id, 1)
    return Report(
        execution_id=claimed.execution_id,
        attempt=claimed.attempt,
        status=Status.COMPLETED,
        result_json=result_json,
    )


async def test_claims_and_reports_of_one_batch_are_answered_in_its_order(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=None)
    first, second, third = await protocol.submit("a", 3)
    await protocol.claim(first, second)
    answers = await protocol.record().exchange([report(second, "2"), offer(third, 1), report(first, "1")])
    assert [type(answer) for answer in answers] == [Finished, Claim, Finished]
    assert isinstance(answers[1], Claim)
    assert answers[1].execution_id == third


async def test_a_report_that_the_database_refuses_ends_its_attempt_alone(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=None)
    ids = await protocol.submit("a", 4)
    await protocol.claim(*ids[:3])
    batch: list[Offer | Report] = [
        report(ids[0], "1"),
        report(ids[1], "{no json"),
        report(ids[2], "3"),
        offer(ids[3], 1),
    ]
    answers = await protocol.record().exchange(batch)
    statuses = [answer.status for answer in answers if isinstance(answer, Finished)]
    assert statuses == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert isinstance(answers[3], Claim)
    error = await protocol.connection.fetchval("SELECT error_type FROM execution WHERE id = $1", ids[1])
    assert error == "ReportRefused"
