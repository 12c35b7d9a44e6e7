"""Executions are shown as the turns left them: waiting, granted, live, ended, or with a locked record."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.ledger import Led, admitted, ended, granted, session_on, waiting
from turnstile.common.domain.identifiers import ExecutionId, Grant
from turnstile.common.domain.states import Status
from turnstile.executor.history.executions import Executions, Record
from turnstile.executor.history.filters import ExecutionFilter
from turnstile.executor.leader.records import AttemptRow, LiveRow
from turnstile.executor.queue_manager.decisions import Passage


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def live(execution_id: int, **fields: Any) -> LiveRow:
    given: dict[str, Any] = {
        "action_ref": "a", "key": "", "priority": 3, "status": Status.QUEUED, "attempt": 0, "failures": 0,
        "reclaims": 0, "queued_at": 101.0, "expires_at": None, "due_at": None, "ttl_seconds": None,
        "timeout_seconds": None, "cancel_reason": None, "grant": None, "worker_id": None,
        "scheduled_at": None, "started_at": None, "held": (), "is_holding": False, "is_impatient": False,
        "passages": (),
    } | fields  # fmt: skip
    return LiveRow(id=execution_id, **given)


def running(execution_id: int, epoch: int, **fields: Any) -> LiveRow:
    given: dict[str, Any] = {
        "status": Status.RUNNING, "attempt": 2, "grant": Grant(epoch, 9), "worker_id": "v",
        "scheduled_at": 110.0, "started_at": 111.0,
    } | fields  # fmt: skip
    return live(execution_id, **given)


async def found(executions: Executions, execution_id: int) -> Record:
    record = await executions.execution(ExecutionId(execution_id))
    assert record is not None
    return record


async def listed(executions: Executions, **wanted: Any) -> list[int]:
    page = await executions.listed(ExecutionFilter(**wanted), before_id=1000, limit=100)
    return [each["id"] for each in page.items]


async def test_what_was_admitted_is_queued(led: Led, executions: Executions) -> None:
    await led.admit(1)
    record = await found(executions, 1)
    assert record.stored.status is Status.QUEUED
    assert (record.stored.attempt, record.stored.worker_id, record.attempts) == (0, None, [])
    assert (record.stored.created_at, record.stored.queued_at) == (at(101), at(101))
    assert record.stored.parameters == {"n": 1}


async def test_a_first_grant_is_scheduled_at_its_worker(led: Led, executions: Executions) -> None:
    await led.admit(1, 2)
    await led.write(granted=[granted(led.epoch, 1, 1, 2)])
    await led.write(waiting=[waiting(1)], low_id=2)
    for execution_id in (1, 2):
        stored = (await found(executions, execution_id)).stored
        assert (stored.status, stored.attempt, stored.worker_id) == (Status.SCHEDULED, 1, "w")
        assert stored.scheduled_at == at(102)


async def test_a_row_of_its_own_tells_all_about_what_runs(led: Led, executions: Executions) -> None:
    first = AttemptRow(
        execution_id=1, attempt=1, outcome="failed", worker_id="w", scheduled_at=102.0, started_at=103.0,
        ended_at=104.0, error=("E", "m"),
    )  # fmt: skip
    await led.admit(1)
    await led.write(
        live=[running(1, led.epoch, cancel_reason="why", passages=(Passage("resource r", 2, 105.0, 106.0),))],
        attempts=[first],
    )
    record = await found(executions, 1)
    assert (record.stored.status, record.stored.attempt) == (Status.RUNNING, 2)
    assert (record.stored.worker_id, record.stored.started_at) == ("v", at(111))
    assert record.cancel_reason == "why"
    assert [(step.gate, step.units, step.passed_at) for step in record.gates] == [("resource r", 2, at(106))]
    assert [(each.attempt, each.outcome) for each in record.attempts] == [(1, "failed"), (2, None)]


async def test_what_is_queued_again_is_at_no_worker(led: Led, executions: Executions) -> None:
    await led.admit(1)
    await led.write(granted=[granted(led.epoch, 1, 1)])
    await led.write(live=[live(1, attempt=1, failures=1, queued_at=107.0)])
    stored = (await found(executions, 1)).stored
    assert (stored.status, stored.attempt, stored.worker_id) == (Status.QUEUED, 1, None)
    assert (stored.queued_at, stored.scheduled_at) == (at(107), None)


async def test_what_was_delayed_and_is_due_is_queued(led: Led, executions: Executions) -> None:
    await led.write(
        admitted=[admitted(1, status=Status.DELAYED, run_at=105.0)], reserved_id=1000,
        live=[live(1, status=Status.DELAYED, due_at=105.0)],
    )  # fmt: skip
    await led.write(live_over=[1], waiting=[waiting(1, queued_at=105.0)], low_id=2)
    stored = (await found(executions, 1)).stored
    assert (stored.status, stored.queued_at) == (Status.QUEUED, at(105))


async def test_an_end_is_shown_with_its_last_attempt(led: Led, executions: Executions) -> None:
    await led.admit(1)
    await led.write(granted=[granted(led.epoch, 1, 1)])
    await led.write(ended=[ended(1, result=b'{"x": 1.5}')], grants_over=[(led.epoch, 1)])
    record = await found(executions, 1)
    assert (record.stored.status, record.stored.result) == (Status.COMPLETED, {"x": 1.5})
    assert [(each.attempt, each.outcome) for each in record.attempts] == [(1, "completed")]


async def test_an_end_whose_record_is_locked_is_shown(
    led: Led, executions: Executions, database_url: str
) -> None:
    await led.admit(1)
    async with session_on(database_url) as session:
        transaction = session.transaction()
        await transaction.start()
        await session.execute("SELECT FROM ledger.execution WHERE id = 1 FOR UPDATE")
        await led.write(ended=[ended(1, status=Status.FAILED, result=None, error=("E", "m"))])
        stored = (await found(executions, 1)).stored
        await transaction.rollback()
    assert (stored.status, stored.completed_at) == (Status.FAILED, at(104))
    assert stored.error is not None
    assert (stored.error.type, stored.error.message) == ("E", "m")


@pytest.fixture
async def various(led: Led) -> None:
    """1 waits with a row, 2 is scheduled, 3 runs, 4 failed, 5 is delayed, 6 was cancelled, 7 is new."""
    rows = [admitted(each, metadata=b'{"tag": "t%d"}' % each) for each in (1, 2, 3, 4)]
    rows += [admitted(5, status=Status.DELAYED, run_at=900.0, action_ref="b")]
    rows += [admitted(6, action_ref="b", key="k", idempotency_key="i"), admitted(7, priority=1)]
    await led.write(
        admitted=rows, reserved_id=1000, live=[live(5, status=Status.DELAYED, due_at=900.0, action_ref="b")]
    )
    await led.write(
        granted=[granted(led.epoch, 1, 2, 3, 4)], waiting=[waiting(1), waiting(2)], low_id=7,
        live=[running(3, led.epoch, attempt=1)],
        ended=[
            ended(4, status=Status.FAILED, result=None, error=("Boom", "no licence"), worker_id="w"),
            ended(6, status=Status.CANCELLED, result=None, worker_id=None, attempt=0, scheduled_at=None,
                  started_at=None),
        ],
    )  # fmt: skip


@pytest.mark.usefixtures("various")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [7, 6, 5, 4, 3, 2, 1]),
        ({"action_ref": "b"}, [6, 5]),
        ({"action_ref": "unknown"}, []),
        ({"statuses": (Status.QUEUED,)}, [7, 1]),
        ({"statuses": (Status.SCHEDULED, Status.RUNNING)}, [3, 2]),
        ({"statuses": (Status.DELAYED,)}, [5]),
        ({"statuses": (Status.FAILED, Status.CANCELLED)}, [6, 4]),
        ({"statuses": (Status.RUNNING, Status.FAILED)}, [4, 3]),
        ({"concurrency_key": "k"}, [6]),
        ({"idempotency_key": "i"}, [6]),
        ({"priority": 1}, [7]),
        ({"worker_id": "w"}, [4, 2]),
        ({"error": "BOOM: no l"}, [4]),
        ({"metadata": (("tag", "t3"),)}, [3]),
        ({"metadata": (("tag", "t3"), ("other", "x"))}, []),
        ({"scope": ("b",)}, [6, 5]),
        ({"created_after": at(105)}, [7, 6, 5]),
        ({"created_before": at(103), "statuses": (Status.QUEUED, Status.SCHEDULED)}, [2, 1]),
        ({"completed_after": at(100), "completed_before": at(104.5)}, [6, 4]),
    ],
)
async def test_a_filter_selects_by_what_is_so_now(
    executions: Executions, wanted: dict[str, Any], expected: list[int]
) -> None:
    assert await listed(executions, **wanted) == expected


@pytest.mark.usefixtures("various")
async def test_counts_are_by_the_present_status(executions: Executions) -> None:
    counts = await executions.counts(ExecutionFilter())
    assert counts.by_status == {
        Status.QUEUED: 2, Status.SCHEDULED: 1, Status.RUNNING: 1, Status.DELAYED: 1, Status.FAILED: 1,
        Status.CANCELLED: 1,
    }  # fmt: skip
    assert not counts.is_cut
