"""What one execution goes through: reports, retries, delays, expiry, cancels; and what deletion does."""

from math import inf
from typing import Any

import pytest

from tests.unit.queue_manager.scheduler import Scheduler, two_resources, uses
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Rate, Resource
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DeleteAction,
    DeleteResource,
    Ended,
    Overdue,
    SetKey,
)
from turnstile.executor.queue_manager.retries import RetryPolicy

RETRY = RetryPolicy(max_attempts=3, delay_seconds=2, factor=2, jitter=0)


def test_an_end_frees_its_slot_once_however_often_it_is_reported() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all(*"aaa")
    end = s.ended(1, source="letter")
    assert s.turn(end, end) == [2]
    assert s.out.stale == ["letter"]
    assert s.turn(end) == []


def test_a_report_of_an_old_grant_changes_nothing() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    old = s.ended(1)
    s.give_back(1)
    assert s.turn(old) == []
    assert s.running() == [1]
    assert s.execution(1).attempt == 2


def test_grants_have_numbers_that_are_never_used_again() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a")
    grants = [s.grant(1)]
    for _ in range(3):
        s.give_back(1)
        grants.append(s.grant(1))
    assert grants == sorted(set(grants))


def test_a_started_execution_runs_and_a_repetition_changes_nothing() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    s.now = 3
    s.report_start(1)
    s.now = 4
    s.report_start(1)
    assert (s.execution(1).status, s.execution(1).started_at) == (Status.RUNNING, 3)
    assert s.out.changed == {}


@pytest.mark.parametrize(
    "status", [Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED, Status.EXPIRED]
)
def test_a_report_ends_an_execution_with_its_status(status: Status) -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    s.wait(3)
    assert s.turn(s.ended(1, status, started_at=1.0, completed_at=2.0)) == [2]
    (end,) = s.out.finished
    assert (end.status, end.started_at, end.completed_at, end.error) == (status, 1.0, 2.0, None)


def test_an_attempt_ends_before_the_grant_in_its_place_though_its_worker_is_ahead() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    s.wait(3)
    assert s.turn(s.ended(1, Status.COMPLETED, started_at=60.0, completed_at=61.0)) == [2]
    (end,) = s.out.finished
    assert (end.started_at, end.completed_at, s.execution(2).scheduled_at) == (3.0, 3.0, 3.0)


def test_a_failed_attempt_waits_and_returns_to_the_head_of_its_queue() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1, retry=RETRY))
    s.submit_all(*"aaa")
    assert s.fail(1) == [2]
    assert s.execution(1).status is Status.DELAYED
    assert s.out.next_at == 2
    assert s.wait(2) == []
    assert s.end(2) == [1]
    assert s.execution(1).attempt == 2


def test_retries_end_with_the_last_attempt_and_delays_grow() -> None:
    s = Scheduler(Action(ref="a", retry=RETRY))
    s.submit_all("a")
    s.fail(1)
    assert s.wait(2) == [1]
    s.fail(1)
    assert s.wait(3.5) == []
    assert s.wait(0.5) == [1]
    s.fail(1)
    assert s.outcomes() == {1: Status.FAILED}


def test_the_delay_that_an_action_asks_for_wins() -> None:
    s = Scheduler(Action(ref="a", retry=RETRY))
    s.submit_all("a")
    s.fail(1, delay_seconds=7)
    assert s.wait(6) == []
    assert s.wait(1) == [1]


def test_only_failures_are_retried() -> None:
    s = Scheduler(Action(ref="a", retry=RETRY))
    s.submit_all("a")
    s.turn(s.ended(1, Status.TIMEOUT, is_retryable=True))
    assert s.outcomes() == {1: Status.TIMEOUT}


def test_a_cancel_wins_over_a_retry() -> None:
    s = Scheduler(Action(ref="a", retry=RETRY))
    s.submit_all("a")
    s.cancel(1)
    s.fail(1)
    assert s.outcomes() == {1: Status.FAILED}


@pytest.mark.parametrize(("ttl", "status"), [(2, Status.FAILED), (2.5, None)])
def test_a_ttl_that_ends_before_the_retry_wins(ttl: float, status: Status | None) -> None:
    s = Scheduler(Action(ref="a", retry=RETRY, ttl_seconds=ttl))
    s.submit_all("a")
    s.fail(1)
    assert s.outcomes().get(1) is status


def test_what_is_delayed_has_no_slot_and_no_position_until_it_is_due() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit("a", run_at=5.0)
    assert s.out.admitted[0].position is None
    assert s.submit_all("a", "a") == [2]
    assert s.wait(5) == []
    assert s.end(2) == [1]


def test_a_due_execution_enters_at_the_place_of_its_id() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0))
    s.submit("a", run_at=5.0)
    s.submit_all("a", "a")
    s.wait(5)
    assert list(s.state.actions["a"].queues[""].waiting[3]) == [1, 2, 3]


def test_a_run_at_of_the_past_waits_at_once() -> None:
    s = Scheduler(Action(ref="a"))
    s.now = 9
    assert s.submit_all("a", run_at=5.0) == [1]


def test_a_ttl_counts_from_the_first_enqueue() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0, ttl_seconds=10))
    s.submit("a", run_at=100.0)
    s.wait(100)
    s.wait(9)
    assert s.outcomes() == {}
    s.wait(1)
    assert s.outcomes() == {1: Status.EXPIRED}


def test_a_request_can_have_a_ttl_and_a_timeout_of_its_own() -> None:
    s = Scheduler(Action(ref="a", ttl_seconds=10, timeout_seconds=60, max_concurrent=1))
    s.submit_all("a", "a")
    assert s.out.granted[0].timeout_seconds == 60
    s.submit("a", ttl_seconds=1)
    s.submit("a", timeout_seconds=5)
    s.wait(1)
    assert s.outcomes() == {3: Status.EXPIRED}
    s.end(1)
    assert s.end(2) == [4]
    assert s.out.granted[0].timeout_seconds == 5


def test_expiry_in_the_middle_of_a_queue_frees_no_place_twice() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    for ttl in (None, None, 2, None, 1):
        s.submit("a", ttl_seconds=ttl)
    s.wait(3)
    assert s.outcomes() == {3: Status.EXPIRED, 5: Status.EXPIRED}
    assert s.end(1) == [2]
    assert s.end(2) == [4]


def test_a_holder_expires_and_releases_its_units() -> None:
    s = two_resources(Action(ref="c", uses=uses("x")))
    s.submit_all("b")
    s.submit("a", ttl_seconds=2)
    assert s.submit_all("c") == []
    assert s.wait(2) == [3]
    assert s.outcomes() == {2: Status.EXPIRED}


def test_timers_that_mean_nothing_any_more_are_removed() -> None:
    s = Scheduler(Action(ref="a", ttl_seconds=1000))
    for _ in range(1200):
        s.submit_all("a")
        s.end(*s.running())
    assert len(s.state.timers) < 1100


def test_removing_old_timers_keeps_the_expiry_of_a_holder() -> None:
    s = two_resources(Action(ref="c", ttl_seconds=1000))
    s.submit_all("b")
    s.submit("a", ttl_seconds=50)
    for _ in range(1100):
        s.submit_all("c")
        s.end(max(s.running()))
    s.wait(50)
    assert s.outcomes() == {2: Status.EXPIRED}


@pytest.mark.parametrize("more", [{}, {"timeout_seconds": 9}, {"run_at": 50.0}])
def test_a_cancel_ends_what_is_not_at_a_worker(more: dict[str, Any]) -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0))
    s.submit("a", **more)
    s.cancel(1, source="letter")
    assert s.outcomes() == {1: Status.CANCELLED}
    assert [(c.status, c.had_ended, c.cancel.source) for c in s.out.cancelled] == [
        (Status.CANCELLED, False, "letter")
    ]
    s.cancel(1)
    assert s.out.cancelled[0].had_ended


def test_a_cancel_at_head_middle_and_tail_keeps_the_order_of_the_rest() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 7)
    for each in (2, 4, 7):
        s.cancel(each)
    assert [s.end(each) for each in (1, 3, 5)] == [[3], [5], [6]]


def test_a_cancel_of_what_is_at_a_worker_only_asks() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    assert s.cancel(1, reason="first") == []
    assert [(each.execution_id, each.reason) for each in s.out.asked] == [(1, "first")]
    s.cancel(1, reason="second")
    assert s.out.asked[0].reason == "first"
    assert s.turn(s.ended(1, Status.CANCELLED)) == [2]


def test_the_reason_of_the_operator_wins_over_the_text_of_the_worker() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    s.cancel(1, reason="wrong customer")
    s.turn(s.ended(1, Status.CANCELLED))
    assert s.out.finished[0].error == ("Cancelled", "wrong customer")


def test_work_that_completes_before_its_cancel_arrives_is_completed() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    s.cancel(1)
    s.end(1)
    assert s.outcomes() == {1: Status.COMPLETED}


def test_what_was_returned_is_first_again() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1), workers={"w": 1, "v": 1})
    s.submit_all("a", "a")
    assert s.give_back(1) == [1]
    assert [(each.id, each.attempt, each.outcome) for each in s.out.attempts] == [(1, 1, "returned")]


def test_what_was_returned_after_a_cancel_is_cancelled() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    s.cancel(1)
    assert s.give_back(1) == [2]
    assert s.outcomes() == {1: Status.CANCELLED}


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_is_overdue_is_ended_by_the_leader(is_cancelled: bool) -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a")
    if is_cancelled:
        s.cancel(1)
    assert s.turn(Overdue(execution_id=1, grant=s.grant(1))) == [2]
    assert s.outcomes() == {1: Status.CANCELLED if is_cancelled else Status.TIMEOUT}
    assert [each.execution_id for each in s.out.asked] == [1]


def test_deleting_is_refused_while_executions_run() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    s.turn(DeleteAction(ref="a", reason="gone", cancel_max=9, source="letter"))
    assert s.out.deleted == [(False, 0, 1, "letter")]
    assert s.running() == [1]


def test_deleting_is_refused_while_more_wait_than_may_be_cancelled() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0))
    s.submit_all("a", "a")
    s.turn(DeleteAction(ref="a", reason="gone", cancel_max=1))
    assert s.out.deleted == [(False, 2, 0, None)]


def test_deleting_cancels_what_waits_is_delayed_or_holds_units() -> None:
    s = two_resources()
    s.submit_all("b", "a", "a/k")
    s.submit("a", run_at=50.0)
    s.turn(DeleteAction(ref="a", reason="gone", cancel_max=9))
    assert s.outcomes() == {2: Status.CANCELLED, 3: Status.CANCELLED, 4: Status.CANCELLED}
    assert s.state.resources["x"].held == 0
    s.turn(Admit(action_ref="a"))
    assert s.out.refused[0].code is Code.UNKNOWN_ACTION


def test_totals_survive_deletion_and_revival() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a", "a")
    s.end(1, 2)
    s.turn(DeleteAction(ref="a", reason="gone"))
    s.define(Action(ref="a"))
    s.submit_all("a")
    assert (s.state.actions["a"].enqueued, s.state.actions["a"].completed) == (3, 2)


def test_the_settings_of_keys_do_not_survive_deletion() -> None:
    s = Scheduler(Action(ref="a"))
    s.turn(SetKey(action_ref="a", key="k", settings=KeySettings(has_limit=True, max_concurrent=0)))
    s.turn(DeleteAction(ref="a", reason="gone"))
    s.define(Action(ref="a"))
    assert s.submit_all("a/k") == [1]


def test_a_resource_of_a_deleted_action_can_be_deleted() -> None:
    s = Scheduler(Resource(name="r", capacity=1), Action(ref="a", uses=uses("r")))
    s.turn(DeleteResource(name="r"))
    assert "r" in s.state.resources
    s.turn(DeleteAction(ref="a", reason="gone"))
    s.turn(DeleteResource(name="r"))
    assert s.state.resources == {}


def test_an_execution_releases_what_it_acquired_though_its_definition_changed() -> None:
    s = Scheduler(
        Resource(name="x", capacity=1), Resource(name="y", capacity=1), Action(ref="a", uses=uses("x"))
    )
    s.submit_all("a")
    s.change("a", uses=uses("y"), rate=Rate(starts=1, per_seconds=1))
    s.end(1)
    assert (s.state.resources["x"].held, s.state.resources["y"].held) == (0, 0)


def test_now_never_goes_back() -> None:
    s = Scheduler(Action(ref="a", rate=Rate(starts=1, per_seconds=10)))
    s.now = 100
    s.submit_all("a", "a")
    s.now = 50
    s.submit_all("a")
    assert s.out.now == 100


def test_a_change_without_time_has_no_next_instant() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    assert s.out.next_at == inf


def test_the_ledger_hears_of_what_is_more_than_waiting_or_granted() -> None:
    s = Scheduler(Action(ref="a", retry=RETRY))
    s.submit_all("a")
    assert s.out.changed == {}
    s.fail(1)
    assert list(s.out.changed) == [1]
    s.wait(2)
    assert list(s.out.changed) == [1]
    s.end(1)
    assert s.out.changed == {1: None}


def test_a_report_about_an_unknown_execution_is_stale() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    end = Ended(execution_id=7, grant=s.grant(1), status=Status.COMPLETED, source="letter")
    s.turn(end)
    assert s.out.stale == ["letter"]
