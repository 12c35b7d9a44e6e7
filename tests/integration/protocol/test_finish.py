"""finish: an attempt ends once, by the worker that holds it, and its slot stays held (P1, P3, P6)."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.support.protocol import OTHER_WORKER, Protocol
from turnstile.common.domain.states import Status


@pytest.fixture
async def running(protocol: Protocol) -> list[int]:
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3, retry={"max_attempts": 3})
    ids = await protocol.submit(count=4)
    await protocol.claim(*ids[:3])
    return ids


async def snapshot(protocol: Protocol) -> list[str]:
    return await protocol.column(
        "SELECT row_to_json(e)::text FROM execution e UNION ALL SELECT row_to_json(s)::text FROM slot s"
    )


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED])
async def test_an_attempt_ends_as_it_is_reported(
    protocol: Protocol, running: list[int], status: Status
) -> None:
    result = '{"words": [1, "é"]}' if status is Status.COMPLETED else None
    (finished,) = await protocol.finish(running[0], status=status, result_json=result, log="said this")
    ended = await protocol.execution(running[0])
    assert (finished.verdict, finished.status) == ("applied", status)
    assert finished.ended_at == ended["completed_at"]
    assert (ended["status"], ended["result"]) == (status, result)
    assert ended["error_type"] == (None if status is Status.COMPLETED else "Broken")
    assert await protocol.attempts(running[0]) == [(1, "worker-1", status.value)]
    assert await protocol.column("SELECT log FROM attempt") == ["said this"]


async def test_the_slot_stays_held_until_the_end_is_settled(protocol: Protocol, running: list[int]) -> None:
    await protocol.finish(*running[:3])
    assert await protocol.held() == running[:3]
    assert await protocol.status(running[3]) == "queued"
    assert (await protocol.queue())["total_completed"] == 0


async def test_a_second_report_changes_nothing_and_is_to_be_told_again(
    protocol: Protocol, running: list[int]
) -> None:
    (first,) = await protocol.finish(running[0], result_json="1")
    before = await snapshot(protocol)
    (second,) = await protocol.finish(running[0], result_json="2")
    assert (second.verdict, second.status, second.ended_at) == ("already", "completed", first.ended_at)
    assert await snapshot(protocol) == before


async def test_an_end_that_somebody_else_wrote_is_not_this_worker_s_to_tell(
    protocol: Protocol, running: list[int]
) -> None:
    await protocol.finish(running[0], status=Status.CANCELLED)
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0], result_json="1") == "stale"
    assert await snapshot(protocol) == before


async def test_a_late_report_of_this_worker_s_own_earlier_attempt_changes_nothing(
    protocol: Protocol, running: list[int]
) -> None:
    one = running[0]
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    await protocol.claim(one, attempt=2)
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(one, attempt=1) == "stale"
    assert await snapshot(protocol) == before


async def test_another_worker_s_report_is_stale(protocol: Protocol, running: list[int]) -> None:
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0], worker=OTHER_WORKER) == "stale"
    assert await snapshot(protocol) == before


async def test_a_late_report_of_an_attempt_that_was_taken_back_changes_nothing(
    protocol: Protocol, running: list[int]
) -> None:
    one = running[0]
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    await protocol.claim(one, attempt=2, worker=OTHER_WORKER)
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(one, attempt=1) == "stale"
    assert await snapshot(protocol) == before
    assert await protocol.finish_verdict(one, attempt=2, worker=OTHER_WORKER) == "applied"


async def test_a_report_from_after_the_lease_changes_nothing_until_it_is_renewed(
    protocol: Protocol, running: list[int]
) -> None:
    await protocol.lose_lease()
    before = await snapshot(protocol)
    assert await protocol.finish_verdict(running[0]) == "lease_over"
    assert await snapshot(protocol) == before
    await protocol.renew()
    assert await protocol.finish_verdict(running[0]) == "applied"


async def test_what_was_never_claimed_or_never_was_cannot_end(protocol: Protocol, running: list[int]) -> None:
    before = await snapshot(protocol)
    finished = await protocol.finish(running[3], 10**12)
    assert [f.verdict for f in finished] == ["stale", "stale"]
    assert [f.status for f in finished] == ["queued", None]
    assert await snapshot(protocol) == before


async def test_one_batch_may_hold_every_verdict(protocol: Protocol, running: list[int]) -> None:
    await protocol.finish(running[1])
    finished = await protocol.finish(running[2], running[1], running[3], running[0])
    assert [f.verdict for f in finished] == ["applied", "already", "stale", "applied"]


async def test_an_empty_batch_is_nothing(protocol: Protocol) -> None:
    assert await protocol.finish() == []


@pytest.mark.parametrize("status", ["running", "queued", "scheduled", "no such state"])
async def test_only_an_end_can_be_reported(protocol: Protocol, running: list[int], status: str) -> None:
    before = await snapshot(protocol)
    with pytest.raises((asyncpg.CheckViolationError, asyncpg.InvalidTextRepresentationError)):
        await protocol.connection.fetch(
            "SELECT turnstile.finish('worker-1', $1, '{1}', $2, '{null}', '{E}', '{m}', '{null}', '{null}')",
            [running[0]],
            [status],
        )
    assert await snapshot(protocol) == before


# --- retries ------------------------------------------------------------------------------------------


async def test_a_retry_waits_outside_the_line_and_is_counted(protocol: Protocol, running: list[int]) -> None:
    one = running[0]
    (finished,) = await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=30)
    again = await protocol.execution(one)
    assert (finished.verdict, finished.status) == ("applied", "delayed")
    assert (again["status"], again["failures"], again["completed_at"]) == ("delayed", 1, None)
    (wait,) = await protocol.column(
        "SELECT extract(epoch FROM d.due_at - s.finished_at)::float"
        " FROM delayed d JOIN slot s ON s.execution_id = d.execution_id"
    )
    assert wait == 30.0
    assert await protocol.attempts(one) == [(1, "worker-1", "retried")]
    assert one in await protocol.held()


async def test_what_was_asked_to_stop_is_not_tried_again(protocol: Protocol, running: list[int]) -> None:
    await protocol.cancel(running[0])
    (finished,) = await protocol.finish(running[0], status=Status.FAILED, retry_delay_seconds=1)
    assert finished.status is Status.FAILED
    assert await protocol.column("SELECT count(*) FROM delayed") == [0]


async def test_no_retry_outlives_the_time_to_live(protocol: Protocol) -> None:
    await protocol.put()
    ids = await protocol.submit(count=2, ttl=60)
    await protocol.claim(*ids)
    (sooner,) = await protocol.finish(ids[0], status=Status.FAILED, retry_delay_seconds=30)
    (later,) = await protocol.finish(ids[1], status=Status.FAILED, retry_delay_seconds=90)
    assert (sooner.status, later.status) == ("delayed", "failed")


async def test_only_failures_count_as_failures(protocol: Protocol, running: list[int]) -> None:
    await protocol.finish(running[0], status=Status.FAILED)
    await protocol.finish(running[1], status=Status.TIMEOUT)
    await protocol.finish(running[2])
    assert await protocol.column("SELECT failures FROM execution ORDER BY id LIMIT 3") == [1, 0, 0]


async def test_a_stopped_attempt_ends_with_the_reason_of_whoever_asked(
    protocol: Protocol, running: list[int]
) -> None:
    asked, unasked = running[:2]
    await protocol.cancel(asked, reason="enough")
    await protocol.finish(asked, unasked, status=Status.CANCELLED)
    assert (await protocol.execution(asked))["error_message"] == "enough"
    assert (await protocol.execution(unasked))["error_message"] == "it broke"


@pytest.mark.parametrize("asked_seconds", [1e12, 1e300, float("inf"), float("nan")])
async def test_no_wait_for_a_retry_is_beyond_what_can_be_shown(
    protocol: Protocol, running: list[int], asked_seconds: float
) -> None:
    one = running[0]
    (finished,) = await protocol.finish(one, status=Status.FAILED, retry_delay_seconds=asked_seconds)
    assert (finished.verdict, finished.status) == ("applied", "delayed")
    run_at = await protocol.connection.fetchval("SELECT run_at FROM execution WHERE id = $1", one)
    assert run_at < datetime.now(UTC) + timedelta(days=3661)
