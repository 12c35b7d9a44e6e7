"""How the latest executions of each action ended: what is read, when, and at which cost."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.dashboard.test_state import NOW, queue, snapshot
from tests.integration.executor.page_counts import cost_of
from tests.support.protocol import WORKER, Protocol
from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.executor.dashboard.failures import (
    ROWS_MAX,
    STARTS_MAX,
    FailureReadings,
    Failures,
    LastFailure,
    Start,
)
from turnstile.executor.dashboard.live import read_attention, read_failures
from turnstile.executor.dashboard.state import DEAD_LETTERS_MAX, Attention, DashboardState, QueueOrder
from turnstile.executor.sql import query


def ends(failed: int, ended: int, *, seconds: float = 0.0) -> Failures:
    at = NOW + timedelta(seconds=seconds)
    return Failures(read_at=at, since=at - timedelta(minutes=10), ended=ended, failed=failed)


def refs(starts: Sequence[Start]) -> list[str]:
    return list(dict.fromkeys(start.action_ref for start in starts))


def after(state: DashboardState, seconds: float) -> list[str]:
    starts, _ = state.failures.starts(NOW + timedelta(seconds=seconds))
    return refs(starts)


def test_an_action_is_read_once_something_of_it_has_ended() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("idle"), queue("busy", total_completed=1), whole=True))
    assert after(state, 0) == ["busy"]
    assert after(state, 0) == []
    state.apply(snapshot(queue("idle", total_enqueued=1, depth=1), seconds=1))
    assert after(state, 1) == []
    state.apply(snapshot(queue("idle", total_enqueued=1, total_completed=1), seconds=2))
    assert after(state, 2) == ["idle"]


def test_an_action_that_ends_all_the_time_is_read_every_five_seconds() -> None:
    state = DashboardState()
    read = []
    for second in range(12):
        state.apply(snapshot(queue("a", total_completed=second + 1), seconds=second))
        starts, _ = state.failures.starts(NOW + timedelta(seconds=second))
        if starts:
            state.apply_failures(starts, [("a", ends(0, 1, seconds=second))])
            read.append(second)
    assert read == [0, 5, 10]


def test_a_thousand_actions_take_turns_and_no_reading_exceeds_its_bounds() -> None:
    state = DashboardState()
    everything = [queue(f"a{n}", queue_id=n, total_completed=1, depth=n % 2) for n in range(1000)]
    state.apply(snapshot(*everything, whole=True))
    seen: list[str] = []
    while starts_and_rows := state.failures.starts(NOW):
        starts, rows = starts_and_rows
        if not starts:
            break
        assert len(starts) <= STARTS_MAX
        assert len(starts) * rows <= ROWS_MAX
        seen += refs(starts)
    assert seen == [f"a{n}" for n in range(1000)]


def test_an_action_with_waiting_executions_is_also_read_below_the_heads_of_its_queues() -> None:
    readings = FailureReadings()
    for n in range(6):
        readings.note(queue("a", f"k{n}", queue_id=n + 1, depth=3), has_ended=True)
    readings.note(queue("a", "k5", queue_id=6, depth=0), has_ended=True)
    starts, _ = readings.starts(NOW)
    assert starts == [Start("a", None), Start("a", 3), Start("a", 4), Start("a", 5)]


def test_failures_leave_the_window_without_another_end_and_deleted_actions_are_forgotten() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("a", total_completed=1), queue("gone", total_completed=1), whole=True))
    starts, _ = state.failures.starts(NOW)
    state.apply_failures(starts, [("a", ends(1, 1)), ("gone", ends(2, 4))])
    assert (state.failures.sums.failed, state.failures.sums.ended, state.failures.sums.actions) == (3, 5, 2)
    state.apply(snapshot(queue("a", total_completed=1), seconds=60, whole=True))
    assert (state.failures.sums.failed, state.failures.sums.actions) == (1, 1)
    assert after(state, 60) == ["a"]


def test_a_reading_that_failed_is_repeated() -> None:
    readings = FailureReadings()
    readings.note(queue("a"), has_ended=True)
    starts, _ = readings.starts(NOW)
    readings.put_back(starts)
    assert readings.starts(NOW)[0] == starts


def test_the_action_with_the_most_failures_comes_first() -> None:
    state = DashboardState()
    state.apply(snapshot(*(queue(ref, total_completed=9) for ref in "abc"), whole=True))
    starts, _ = state.failures.starts(NOW)
    state.apply_failures(starts, [("a", ends(1, 9)), ("b", ends(0, 9)), ("c", ends(5, 9))])
    assert [each.name.action_ref for each in state.sorted(QueueOrder.FAILURES, "")] == ["c", "a", "b"]


def test_the_rate_is_that_of_the_time_which_was_read() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    some = Failures(read_at=at, since=at - timedelta(seconds=30), ended=8, failed=2)
    assert some.share == 0.25
    assert some.per_minute == pytest.approx(4.0)
    none = Failures(read_at=at, since=at)
    assert (none.share, none.per_minute) == (None, None)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, application_name="test", connections_max=2)
    await database.open()
    yield database
    await database.close()


async def one(database: Database, *starts: Start, rows: int = 100) -> Failures:
    ((_, found),) = await read_failures(database, starts, rows)
    return found


async def ended(protocol: Protocol, ids: Sequence[int], status: Status) -> None:
    await protocol.register()
    for execution_id in ids:
        await protocol.claim(execution_id)
        await protocol.finish(execution_id, status=status)
        await protocol.settle((execution_id, 1))


async def test_ends_are_counted_by_action_with_the_latest_failure(
    protocol: Protocol, database: Database
) -> None:
    await protocol.put("a")
    await protocol.put("other")
    await ended(protocol, await protocol.submit("a", 3), Status.COMPLETED)
    first, second = await protocol.submit("a", 2)
    await ended(protocol, [second, first], Status.FAILED)
    await ended(protocol, await protocol.submit("other", 1), Status.FAILED)
    found = await one(database, Start("a", None))
    assert (found.ended, found.failed, found.share) == (5, 2, 0.4)
    assert found.last == LastFailure(
        execution_id=first,
        status="failed",
        at=(await protocol.execution(first))["completed_at"],
        type="Broken",
        message="it broke",
    )
    assert found.read_at - found.since == timedelta(minutes=10)
    assert await read_failures(database, [Start("no.such", None)], 10) == []


async def test_failures_before_a_long_queue_are_found_from_its_head(
    protocol: Protocol, database: Database
) -> None:
    await protocol.put("a", max_concurrent=3)
    (failing, *_) = await protocol.submit("a", 60)
    await ended(protocol, [failing], Status.FAILED)
    queue_id = (await protocol.queue("a"))["id"]
    newest_only = await one(database, Start("a", None), rows=20)
    assert (newest_only.ended, newest_only.failed) == (0, 0)
    assert newest_only.since == newest_only.read_at
    found = await one(database, Start("a", None), Start("a", queue_id), rows=20)
    assert (found.ended, found.failed) == (1, 1)


async def test_ends_before_the_window_do_not_count_and_a_cut_reading_has_a_later_start(
    protocol: Protocol, database: Database
) -> None:
    await protocol.put("a")
    ids = await protocol.submit("a", 6)
    await ended(protocol, ids, Status.FAILED)
    await protocol.connection.execute(
        "UPDATE execution SET completed_at = now() - CASE WHEN id <= $1 THEN interval '20 min' "
        "ELSE interval '1 min' END",
        ids[1],
    )
    assert (await one(database, Start("a", None))).failed == 4
    cut = await one(database, Start("a", None), rows=3)
    assert cut.failed == 3
    assert cut.read_at - cut.since == pytest.approx(timedelta(minutes=1), abs=timedelta(seconds=5))
    assert cut.per_minute == pytest.approx(3.0, rel=0.1)


async def test_a_reading_costs_its_rows_and_not_the_history(protocol: Protocol) -> None:
    await protocol.put("a")
    await protocol.register(WORKER)
    await protocol.connection.execute(
        """
        INSERT INTO execution (action_id, queue_id, status, request_hash, completed_at, error_type)
        SELECT a.id, 0, 'failed', gen_random_uuid(), now(), 'E'
        FROM action a CROSS JOIN generate_series(1, 20000) WHERE a.ref = 'a'
        """
    )
    async with protocol.transaction():
        await protocol.connection.execute("SET LOCAL enable_seqscan = off")
        reading = protocol.connection.fetch(query("dashboard_failures"), ["a"], [None], 200, 600.0)
        cost = await cost_of(protocol, reading)
    assert cost.full_scans.get("execution", 0) == 0
    assert cost.pages <= 4 * 200


async def test_dead_letters_and_the_losses_of_a_day_are_counted_up_to_a_bound(
    protocol: Protocol, database: Database
) -> None:
    assert await read_attention(database) == Attention()
    await protocol.connection.execute(
        """
        INSERT INTO worker (id, name, host, pid, pools, concurrency, lease_expires_at, lost_at, stopped_at)
        SELECT 'w' || n, 'w', 'h', 1, '{none}', 1, now(),
               CASE WHEN n < 4 THEN now() - n * interval '10 h' END, CASE WHEN n = 4 THEN now() END
        FROM generate_series(1, 5) n
        """
    )
    await protocol.connection.execute(
        """
        INSERT INTO dead_letter (fingerprint, code, error, exchange, routing_key, original_routing_key, tries,
                                 died_at, stored_at, headers, body, body_bytes, stored_bytes)
        SELECT 'f' || n, 'c', 'e', '', '', '', 1, now(), now(), '{}', 'abc', 3, 3
        FROM generate_series(1, 1500) n
        """
    )
    assert await read_attention(database) == Attention(dead_letters=DEAD_LETTERS_MAX, lost_workers=2)
