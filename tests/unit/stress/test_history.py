"""The rules over plain histories, and the report of the demo that is made of them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from turnstile.common.domain.states import Status
from turnstile.stress.check.history import (
    AttemptHistory,
    ExecutionHistory,
    History,
    QueueHistory,
    handover_seconds,
)
from turnstile.stress.check.verdict import Rule
from turnstile.stress.demo.job import Task
from turnstile.stress.demo.report import Report, evaluate, print_report

STUCK = Rule.NOTHING_STUCK
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def attempt(execution_id: int, granted: float, ended: float | None, *, since: float = 0.0) -> AttemptHistory:
    """Return an attempt that a worker claimed 10 ms after its grant."""
    return AttemptHistory(
        execution_id=execution_id,
        waiting_since=at(since),
        granted_at=at(granted),
        started_at=at(granted + 0.01),
        ended_at=None if ended is None else at(ended),
    )


CLEAN = (attempt(1, 1.0, 2.0), attempt(2, 1.0, 3.0), attempt(3, 2.01, 4.0), attempt(4, 3.02, 4.0))
"""Four executions on two slots."""


def queue(*attempts: AttemptHistory, limit: int | None = 2) -> QueueHistory:
    return QueueHistory(action_ref="a", max_concurrent=limit, attempts=attempts)


def clean_history(attempts: Sequence[AttemptHistory] = CLEAN, *, limit: int | None = 2) -> History:
    """Return a history in which everything else is correct."""
    executions = tuple(
        ExecutionHistory(
            execution_id=each.execution_id,
            action_ref="a",
            number=each.execution_id - 1,
            status=Status.COMPLETED,
            result={"words": each.execution_id - 1, "lines": 1},
            error_message=None,
            created_at=each.waiting_since,
            completed_at=each.ended_at or at(9),
            holds_slot=False,
        )
        for each in sorted(attempts, key=lambda each: each.execution_id)
    )
    return History(queues=(queue(*attempts, limit=limit),), executions=executions)


def changed(index: int, **fields: object) -> History:
    """Return the clean history with one execution changed."""
    executions = list(clean_history().executions)
    executions[index] = replace(executions[index], **fields)  # type: ignore[arg-type]
    return replace(clean_history(), executions=tuple(executions))


def report_on(history: History, *, submitted: int = 4) -> Report:
    tasks = [
        Task(number=number, action_ref="a", path=Path(f"{number}.txt"), expected={"words": number})
        for number in range(submitted)
    ]
    return evaluate(tasks, history)


def test_a_handover_is_measured_from_the_end_that_freed_the_slot() -> None:
    # 3 follows 1 on its slot, 4 follows 2; the first two found free slots.
    assert [round(s, 3) for s in handover_seconds(queue(*CLEAN))] == [0.02, 0.03]
    assert handover_seconds(queue(*CLEAN, limit=None)) == []
    late = attempt(2, 5.0, 6.0, since=4.99)
    assert handover_seconds(queue(attempt(1, 0.0, 1.0), late, limit=1)) == []


@pytest.mark.parametrize("limit", [2, None])
def test_a_clean_history_has_no_violations(limit: int | None) -> None:
    report = report_on(clean_history(limit=limit))
    assert report.violations == ()
    assert (report.submitted, report.completed, report.compared, report.elapsed_seconds) == (4, 4, 4, 4.0)
    (of_queue,) = report.queues
    assert (of_queue.peak_slots, of_queue.peak_running, of_queue.out_of_order) == (2, 2, 0)


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        (
            clean_history([replace(CLEAN[0], ended_at=at(2.02)), *CLEAN[1:]]),
            f"{Rule.LIMIT_HELD}: a: 3 executions held slots at once, the limit is 2",
        ),
        (
            clean_history([*CLEAN[:2], attempt(4, 2.01, 3.0), attempt(3, 3.02, 4.0)]),
            f"{Rule.GRANTED_IN_ORDER}: execution 4 of a was granted a slot while execution 3 waited",
        ),
        (
            replace(clean_history(), executions=clean_history().executions[:3]),
            f"{Rule.NOTHING_LOST}: request 3 has no execution",
        ),
        (changed(3, number=2), f"{Rule.NOTHING_TWICE}: request 2 has 2 executions"),
        (
            changed(3, status=Status.QUEUED, completed_at=None),
            f"{STUCK}: execution 4 of a is still queued",
        ),
        (
            changed(1, holds_slot=True),
            f"{STUCK}: execution 2 of a has ended and still holds its slot",
        ),
        (
            changed(1, status=Status.FAILED, result=None, error_message="no such file"),
            "execution 2 of a is failed: no such file",
        ),
        (
            changed(1, result={"words": 99}),
            "the result of execution 2 of a is {'words': 99}, expected {'words': 1}",
        ),
    ],
)
def test_each_violation_is_reported(history: History, violation: str) -> None:
    assert violation in report_on(history).violations


def test_requests_that_were_admitted_out_of_order_are_reported() -> None:
    executions = clean_history().executions
    turned = [replace(e, execution_id=5 - e.execution_id) for e in reversed(executions)]
    report = report_on(replace(clean_history(), executions=tuple(turned)))
    assert report.violations == tuple(
        f"{Rule.ADMITTED_IN_ORDER}: request {number} was admitted after request 3" for number in (2, 1, 0)
    )


def test_the_printed_report_says_pass_or_names_each_violation() -> None:
    def printed(history: History) -> str:
        out = StringIO()
        print_report(Console(file=out, width=120), report_on(history))
        return out.getvalue()

    assert "PASS" in printed(clean_history())
    assert "FAIL" not in printed(clean_history())
    failed = printed(changed(0, error_message="[/] is not markup", status=Status.FAILED, result=None))
    assert "FAIL execution 1 of a is failed: [/] is not markup" in failed
    assert "PASS" not in failed
