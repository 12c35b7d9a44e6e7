"""How the latest executions of each action ended: what is read, when, and at which cost."""

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.support.ledger import Led, admitted, ended, session_on
from tests.unit.dashboard.test_state import NOW, queue, snapshot
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
from turnstile.executor.dashboard.reading import _STATEMENTS, read_attention, read_errors, read_failures
from turnstile.executor.dashboard.state import DEAD_LETTERS_MAX, Attention, DashboardState, QueueOrder
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.records import DefinitionRow

FAILURES = _STATEMENTS["failures"]


def ends(failed: int, ended: int, *, seconds: float = 0.0) -> Failures:
    at = NOW + timedelta(seconds=seconds)
    return Failures(read_at=at, since=at - timedelta(minutes=10), ended=ended, failed=failed, last=None)


def refs(starts: Sequence[Start]) -> list[str]:
    return list(dict.fromkeys(start.action_ref for start in starts))


def after(state: DashboardState, seconds: float) -> list[str]:
    starts, _ = state.failures.starts(NOW + timedelta(seconds=seconds))
    return refs(starts)


def test_an_action_is_read_once_something_of_it_has_ended() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("idle"), queue("busy", completed=1), whole=True))
    assert after(state, 0) == ["busy"]
    assert after(state, 0) == []
    state.apply(snapshot(queue("idle", enqueued=1, depth=1), seconds=1))
    assert after(state, 1) == []
    state.apply(snapshot(queue("idle", enqueued=1, completed=1), seconds=2))
    assert after(state, 2) == ["idle"]


def test_an_action_that_ends_all_the_time_is_read_every_five_seconds() -> None:
    state = DashboardState()
    read = []
    for second in range(12):
        state.apply(snapshot(queue("a", completed=second + 1), seconds=second))
        starts, _ = state.failures.starts(NOW + timedelta(seconds=second))
        if starts:
            state.apply_failures(starts, [("a", ends(0, 1, seconds=second))])
            read.append(second)
    assert read == [0, 5, 10]


def test_a_thousand_actions_take_turns_and_no_reading_exceeds_its_bounds() -> None:
    state = DashboardState()
    everything = [queue(f"a{n}", head_id=n if n % 2 else None, completed=1) for n in range(1000)]
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
        readings.note(queue("a", f"k{n}", head_id=n + 1, depth=3), has_ended=True)
    readings.note(queue("a", "k5"), has_ended=True)
    starts, _ = readings.starts(NOW)
    assert starts == [Start("a", None), Start("a", 3), Start("a", 4), Start("a", 5)]


def test_a_reading_that_failed_is_repeated() -> None:
    readings = FailureReadings()
    readings.note(queue("a"), has_ended=True)
    starts, _ = readings.starts(NOW)
    readings.put_back(starts)
    assert readings.starts(NOW)[0] == starts


def test_the_action_with_the_most_failures_comes_first() -> None:
    state = DashboardState()
    state.apply(snapshot(*(queue(ref, completed=9) for ref in "abc"), whole=True))
    starts, _ = state.failures.starts(NOW)
    state.apply_failures(starts, [("a", ends(1, 9)), ("b", ends(0, 9)), ("c", ends(5, 9))])
    assert [each.name.action_ref for each in state.sorted(QueueOrder.FAILURES, "")] == ["c", "a", "b"]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url, application_name="test", connections_max=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with opened(database_url) as database:
        yield database


@pytest.fixture
async def led(ledger: Ledger) -> Led:
    led = await Led.by(ledger)
    await led.write(
        definitions=[DefinitionRow(kind="action", name=ref, body={"ref": ref}) for ref in ("a", "other")],
        reserved_id=100_000,
    )
    return led


async def one(database: Database, *starts: Start, rows: int = 100) -> Failures:
    ((_, found),) = await read_failures(database, starts, rows)
    return found


async def end(led: Led, status: Status, *ids: int, ref: str = "a", seconds_ago: float = 1.0) -> None:
    """Let executions be admitted, and end in this order."""
    at = time.time() - seconds_ago
    await led.write(admitted=[admitted(each, action_ref=ref) for each in ids])
    error = None if status is Status.COMPLETED else ("Broken", "it broke")
    for number, each in enumerate(ids):
        of = {"status": status, "error": error, "completed_at": at + number / 1000}
        await led.write(ended=[ended(each, **of, result=None if error else b"1")])


async def fail_with(led: Led, message: str, *ids: int, kind: str = "ValueError") -> None:
    await led.write(admitted=[admitted(each, action_ref="a") for each in ids])
    for each in ids:
        of = {"status": Status.FAILED, "error": (kind, message.replace("ID", str(each))), "result": None}
        await led.write(ended=[ended(each, **of, completed_at=time.time())])


async def test_failures_are_grouped_by_their_error_without_numbers_and_quoted_texts(
    led: Led, database: Database
) -> None:
    await fail_with(led, "invalid address 'customer ID' of order-ID, it isn't known", 1, 2, 3)
    await fail_with(led, "no answer from 10.0.0.ID:5432 within ID.5s: gave up", 4, 5)
    await fail_with(led, "no answer from 10.0.0.ID:5432 within ID.5s: gave up", 6, kind="OSError")
    await end(led, Status.COMPLETED, 7)
    await end(led, Status.FAILED, 8, ref="other")
    found = await read_errors(database, "a", [Start("a", None), Start("a", 3)])
    assert (found.examined, found.failed) == (7, 6)
    assert [(each.count, each.type, each.message, each.last_id) for each in found.items] == [
        (3, "ValueError", "invalid address … of …, it isn't known", 3),
        (2, "ValueError", "no answer from … within …: gave up", 5),
        (1, "OSError", "no answer from … within …: gave up", 6),
    ]
    assert (await read_errors(database, "unused", [Start("unused", None)])).items == []


async def test_ends_are_counted_by_action_with_the_latest_failure(led: Led, database: Database) -> None:
    await end(led, Status.COMPLETED, 1, 2, 3)
    await end(led, Status.FAILED, 5, 4)
    await end(led, Status.FAILED, 6, ref="other")
    found = await one(database, Start("a", None))
    assert (found.ended, found.failed, found.share) == (5, 2, 0.4)
    at = await database.fetchval("SELECT completed_at FROM ledger.execution WHERE id = 4")
    assert found.last == LastFailure(
        execution_id=4, status="failed", at=at, type="Broken", message="it broke"
    )
    assert found.read_at - found.since == timedelta(minutes=10)
    assert await read_failures(database, [Start("no.such", None)], 10) == []


async def test_failures_before_a_long_queue_are_found_from_its_head(led: Led, database: Database) -> None:
    await end(led, Status.FAILED, 1)
    await led.write(admitted=[admitted(each) for each in range(2, 60)])
    newest_only = await one(database, Start("a", None), rows=20)
    assert (newest_only.ended, newest_only.failed) == (0, 0)
    assert newest_only.since == newest_only.read_at
    found = await one(database, Start("a", None), Start("a", 2), rows=20)
    assert (found.ended, found.failed) == (1, 1)


async def test_ends_before_the_window_do_not_count_and_a_cut_reading_has_a_later_start(
    led: Led, database: Database
) -> None:
    await end(led, Status.FAILED, 1, 2, seconds_ago=1200)
    await end(led, Status.FAILED, 3, 4, 5, 6, seconds_ago=60)
    assert (await one(database, Start("a", None))).failed == 4
    cut = await one(database, Start("a", None), rows=3)
    assert cut.failed == 3
    assert cut.read_at - cut.since == pytest.approx(timedelta(minutes=1), abs=timedelta(seconds=5))
    assert cut.per_minute == pytest.approx(3.0, rel=0.1)


async def test_a_reading_costs_its_rows_and_not_the_history(
    led: Led, database: Database, database_url: str
) -> None:
    await database.fetch(
        """
        INSERT INTO ledger.execution (id, created_at, queued_at, completed_at, request_hash, status, priority,
                                      action_ref, key, error_type, error_message, parameters)
        SELECT n, now(), now(), now(), gen_random_uuid(), 'failed', 3, 'a', '', 'E', 'e', '{}'
        FROM generate_series(1, 20000) n
        """
    )
    found = await one(database, Start("a", None), rows=200)
    assert (found.ended, found.failed) == (200, 200)
    async with session_on(database_url) as session, session.transaction():
        await session.execute("SET LOCAL enable_seqscan = off")
        plan = await session.fetch(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS) " + FAILURES,
            ["a"],
            [None],
            200,
            600.0,
        )
    text = "\n".join(row[0] for row in plan)
    assert "Seq Scan on execution" not in text
    assert int(re.findall(r"shared hit=(\d+)", text)[0]) <= 4 * 200, text


async def test_dead_letters_and_the_losses_of_a_day_are_counted_up_to_a_bound(database_url: str) -> None:
    async with opened(database_url) as database:
        await _attention(database)


async def _attention(database: Database) -> None:
    assert await read_attention(database) == Attention()
    await database.fetch(
        """
        INSERT INTO ledger.worker (worker_id, session, secret_hash, name, pools, concurrency, lease_seconds,
                                   is_taking, is_draining, about, registered_at, heard_at, gone_at, gone_why,
                                   held_ids)
        SELECT 'w' || n, 1, 'x', 'w', '{none}', 1, 30, true, false, '{}', now(), now(),
               CASE WHEN n < 5 THEN now() - n * interval '10 h' END,
               CASE WHEN n < 4 THEN 'lost' WHEN n = 4 THEN 'stopped' END,
               CASE WHEN n < 5 THEN '{}'::bigint[] END
        FROM generate_series(1, 5) n
        """
    )
    await database.fetch(
        """
        INSERT INTO ledger.dead_letter (fingerprint, code, error, exchange, routing_key, original_routing_key,
                                        tries, died_at, stored_at, headers, body, body_bytes, stored_bytes)
        SELECT 'f' || n, 'c', 'e', '', '', '', 1, now(), now(), '{}', 'abc', 3, 3
        FROM generate_series(1, 1500) n
        """
    )
    assert await read_attention(database) == Attention(dead_letters=DEAD_LETTERS_MAX, lost_workers=2)
    await database.fetch("UPDATE ledger.worker SET acknowledged_at = now() WHERE worker_id = 'w1'")
    assert (await read_attention(database)).lost_workers == 1
