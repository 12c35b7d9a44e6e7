"""The verdict of the demonstration on histories that were doctored, and on one that was not."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

from rich.console import Console

from turnstile.common.domain.states import Status
from turnstile.executor.demo import figures
from turnstile.executor.demo.history import AttemptHistory, ExecutionHistory, History, QueueHistory
from turnstile.executor.demo.job import Task
from turnstile.executor.demo.page import print_report
from turnstile.executor.demo.report import judge

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


def tasks(count: int) -> list[Task]:
    return [
        Task(number=number, action_ref="a", path=Path(f"{number}.txt"), answer={"words": number})
        for number in range(count)
    ]


def history(attempts: Sequence[AttemptHistory], *, limit: int | None = 2) -> History:
    """Return a history in which everything else is as it should be."""
    executions = tuple(
        ExecutionHistory(
            execution_id=each.execution_id,
            action_ref="a",
            number=each.execution_id - 1,
            status=Status.COMPLETED,
            result={"words": each.execution_id - 1, "lines": 1},
            error_message=None,
            created_at=each.waiting_since,
            completed_at=each.ended_at,
            holds_slot=False,
        )
        for each in sorted(attempts, key=lambda each: each.execution_id)
    )
    queue = QueueHistory(action_ref="a", max_concurrent=limit, attempts=tuple(attempts))
    return History(queues=(queue,), executions=executions)


def test_a_clean_history_breaks_no_promise() -> None:
    report = judge(tasks(4), history(CLEAN))
    assert report.broken == ()
    assert (report.submitted, report.completed, report.checked) == (4, 4, 4)
    assert report.executions_per_second == 1.0
    (queue,) = report.queues
    assert (queue.most_held, queue.most_running, queue.out_of_order) == (2, 2, 0)


def test_one_more_than_the_limit_breaks_a_promise() -> None:
    overshot = [replace(CLEAN[0], ended_at=at(2.02)), *CLEAN[1:]]
    (fault,) = judge(tasks(4), history(overshot)).broken
    assert fault == "limit: 3 executions of a at once, allowed are 2"


def test_an_attempt_that_never_ended_holds_its_slot_to_the_last() -> None:
    report = judge(tasks(4), history([replace(CLEAN[0], ended_at=None), *CLEAN[1:]]))
    assert "limit: 3 executions of a at once, allowed are 2" in report.broken


def test_a_slot_that_one_leaves_as_another_takes_it_is_one_slot() -> None:
    assert figures.most_at_once(figures.held([attempt(1, 1.0, 2.0), attempt(2, 2.0, 3.0)])) == 1


def test_a_queue_without_a_limit_cannot_overshoot() -> None:
    report = judge(tasks(4), history(CLEAN, limit=None))
    assert report.broken == ()
    assert report.queues[0].hand_over_p50_seconds is None


def test_a_start_ahead_of_an_earlier_one_in_line_breaks_a_promise() -> None:
    swapped = [*CLEAN[:2], attempt(4, 2.01, 3.0), attempt(3, 3.02, 4.0)]
    report = judge(tasks(4), history(swapped))
    assert report.broken == ("order: 1 executions of a started ahead of earlier ones, such as 4 ahead of 3",)
    assert report.queues[0].out_of_order == 1


def test_who_was_not_in_line_yet_is_not_overtaken() -> None:
    back_in_line = attempt(1, 5.0, 6.0, since=4.0)
    assert figures.overtakings([attempt(1, 0.0, 1.0), attempt(2, 2.0, 3.0), back_in_line]) == []


def test_grants_of_one_decision_are_in_the_order_of_their_tickets() -> None:
    assert figures.overtakings([attempt(2, 1.0, 2.0), attempt(1, 1.0, 2.0)]) == []


def test_a_request_that_is_not_in_the_record_is_lost() -> None:
    (fault,) = judge(tasks(5), history(CLEAN)).broken
    assert fault == "lost: 1 of 5 requests are not in the record, such as request 4"


def test_an_empty_record_is_all_lost() -> None:
    report = judge(tasks(3), History(queues=(), executions=()))
    assert report.broken == ("lost: 3 of 3 requests are not in the record, such as request 0",)
    assert report.executions_per_second == 0.0


def changed(index: int, **fields: object) -> History:
    """Return the clean history with one execution doctored."""
    clean = history(CLEAN)
    executions = list(clean.executions)
    executions[index] = replace(executions[index], **fields)  # type: ignore[arg-type]
    return replace(clean, executions=tuple(executions))


def test_a_request_that_is_in_the_record_twice_breaks_a_promise() -> None:
    faults = judge(tasks(4), changed(3, number=2)).broken
    assert "once: 1 requests are in the record more than once, such as request 2" in faults


def test_requests_taken_in_out_of_order_break_a_promise() -> None:
    executions = history(CLEAN).executions
    turned = [replace(e, execution_id=5 - e.execution_id) for e in reversed(executions)]
    faults = judge(tasks(4), replace(history(CLEAN), executions=tuple(turned))).broken
    assert faults == ("order: 3 requests were taken in ahead of earlier ones, such as request 3 ahead of 2",)


def test_an_execution_that_did_not_complete_is_named_with_its_reason() -> None:
    doctored = changed(1, status=Status.FAILED, result=None, error_message="no such file")
    report = judge(tasks(4), doctored)
    assert report.broken == ("end: execution 2 of a is failed: no such file",)
    assert report.completed == 3


def test_a_result_that_a_recount_does_not_confirm_breaks_a_promise() -> None:
    (fault,) = judge(tasks(4), changed(1, result={"words": 99})).broken
    assert fault == "result: execution 2 of a says {'words': 99}, which a recount does not confirm"


def test_a_slot_that_was_not_freed_breaks_a_promise() -> None:
    (fault,) = judge(tasks(4), changed(1, holds_slot=True)).broken
    assert fault == "slot: execution 2 of a has ended and still holds its slot"


def test_many_alike_faults_are_told_in_a_few_lines() -> None:
    clean = history([attempt(n + 1, n * 1.0, n + 0.5) for n in range(20)])
    failed = tuple(replace(e, status=Status.FAILED, result=None) for e in clean.executions)
    faults = judge(tasks(20), replace(clean, executions=failed)).broken
    assert len(faults) == 6
    assert faults[-1] == "... and 15 more executions"


def test_a_hand_over_is_measured_from_the_end_that_freed_the_slot() -> None:
    # 3 follows 1 on its slot, 4 follows 2; the first two found free slots.
    assert [round(s, 3) for s in figures.hand_overs(CLEAN, 2)] == [0.02, 0.03]


def test_a_slot_that_nobody_waited_for_was_not_handed_over() -> None:
    late = attempt(2, 5.0, 6.0, since=4.99)
    assert figures.hand_overs([attempt(1, 0.0, 1.0), late], 1) == []


def test_percentiles_are_values_that_were_seen() -> None:
    assert figures.percentile([], 0.5) is None
    assert figures.percentile([7.0], 0.99) == 7.0
    hundred = [float(n) for n in range(1, 101)]
    assert figures.percentile(hundred, 0.5) == 50.0
    assert figures.percentile(hundred, 0.99) == 99.0


def printed(report_of: History) -> str:
    out = StringIO()
    print_report(Console(file=out, width=120), judge(tasks(4), report_of))
    return out.getvalue()


def test_the_page_says_kept_or_names_each_broken_promise() -> None:
    assert "KEPT" in printed(history(CLEAN))
    assert "BROKEN" not in printed(history(CLEAN))
    broken = printed(changed(0, error_message="[/] is not markup", status=Status.FAILED, result=None))
    assert "BROKEN end: execution 1 of a is failed: [/] is not markup" in broken
    assert "KEPT" not in broken
