"""Cards: which facts need attention, how severe each is, and which command mends it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from turnstile.executor.dashboard.cards import Card, Facts, cards
from turnstile.executor.dashboard.failures import Failures, LastFailure
from turnstile.executor.dashboard.state import Attention
from turnstile.executor.questions.explain import Closed, Counted
from turnstile.executor.questions.protocol import ActionStop, StopsOfActions, WorkerState

NOW = datetime(2026, 11, 29, 8, 0, tzinfo=UTC)
AT = NOW.timestamp()
CALM = Facts(
    now=NOW, waited=timedelta(minutes=1), troubles={}, stops=StopsOfActions(actions=(), idle=()), workers=(),
    failures={}, pools={"a": "default"}, attention=Attention(),
)  # fmt: skip
STOP = ActionStop(
    action_ref="a", pool="default", reason="rate", closed=None, resource="", units=1, capacity=5, held=5,
    per_seconds=60.0, waiting=3, oldest_enqueued_at=AT - 61, starved=None,
)  # fmt: skip
WORKER = WorkerState(
    worker_id="w-1", name="w", session=1, pools=("default",), actions=("a",), concurrency=1, running=0,
    is_taking=True, is_draining=False, is_answered=True, lease_seconds=15.0, lease_left_seconds=10.0,
    heard_seconds_ago=1.0, registered_at=AT - 120, about={},
)  # fmt: skip


def stopped(*stops: ActionStop) -> list[Card]:
    return cards(replace(CALM, stops=StopsOfActions(actions=stops, idle=())))


def failed(failures: int, ended: int, *workers: WorkerState) -> list[Card]:
    last = LastFailure(execution_id=7, status="failed", at=NOW, type="ValueError", message="no such key")
    found = Failures(failed=failures, ended=ended, since=NOW, last=last, read_at=NOW)
    return cards(replace(CALM, failures={"a": found}, workers=workers))


def test_nothing_needs_attention_when_all_is_well() -> None:
    assert cards(CALM) == []
    assert failed(0, 100, WORKER) == []


def test_a_bound_is_a_notice_once_work_has_waited_for_it() -> None:
    (card,) = stopped(STOP)
    assert (card.kind, card.severity, card.subject) == ("full", "notice", "a")
    assert stopped(replace(STOP, oldest_enqueued_at=AT - 59)) == []


def test_actions_that_wait_for_one_resource_share_a_card_and_it_is_of_no_single_action() -> None:
    stop = replace(STOP, reason="resource", resource="licence", per_seconds=0.0)
    (card,) = stopped(stop, replace(stop, action_ref="b", oldest_enqueued_at=AT - 600))
    assert (card.subject, card.action_ref) == ("licence", None)
    assert card.since == NOW - timedelta(seconds=600)
    assert card.detail.startswith("6 executions of a, b wait")


@pytest.mark.parametrize(
    ("reason", "closed", "kind", "severity"),
    [
        ("paused", None, "paused", "warning"),
        ("resource", "paused", "paused", "warning"),
        ("limit", "capacity_zero", "never_starts", "critical"),
        ("resource", "capacity_too_low", "never_starts", "critical"),
    ],
)
def test_what_never_starts_by_itself_is_named_at_once(
    reason: Counted, closed: Closed | None, kind: str, severity: str
) -> None:
    resource = "licence" if reason == "resource" else ""
    stop = replace(STOP, reason=reason, closed=closed, resource=resource, oldest_enqueued_at=AT)
    (card,) = stopped(stop)
    assert (card.kind, card.severity) == (kind, severity)


def test_failures_are_a_card_from_three_and_a_tenth_on_and_critical_from_a_half_on() -> None:
    assert failed(2, 2) == []
    assert failed(3, 31) == []
    assert [(each.kind, each.severity) for each in failed(3, 30)] == [("failing", "warning")]
    assert [(each.kind, each.severity) for each in failed(15, 30)] == [("failing", "critical")]


def test_a_worker_of_the_action_that_started_lately_makes_its_failures_a_failing_deployment() -> None:
    old, other = replace(WORKER, registered_at=AT - 3600), replace(WORKER, pools=("gpu",))
    assert [each.kind for each in failed(5, 5, old, other)] == ["failing"]
    assert [each.kind for each in failed(5, 5, old, WORKER)] == ["failing_deployment"]
    assert [each.kind for each in failed(5, 30, WORKER)] == ["failing"]


def test_the_worst_cards_come_first_and_a_missing_leader_is_critical() -> None:
    found = cards(
        replace(
            CALM, troubles={"leader": "no answer"}, attention=Attention(dead_letters=1, lost_workers=2),
            stops=StopsOfActions(actions=(STOP,), idle=()),
            workers=[replace(WORKER, not_ready="start hook failed")],
        )
    )  # fmt: skip
    assert [each.kind for each in found] == ["no_leader", "not_ready", "lost_workers", "dead_letters", "full"]


def test_a_command_can_be_pasted_whatever_the_name_is() -> None:
    (card,) = stopped(replace(STOP, action_ref="a b;c", reason="paused"))
    assert card.command == "executor actions resume 'a b;c'"
