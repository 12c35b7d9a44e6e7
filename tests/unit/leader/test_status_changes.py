"""Which changes of status a turn tells listeners: every step of every execution, once, in order."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded
from turnstile.executor.leader.outbox import changes_of
from turnstile.executor.leader.writing import ended_row
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.definitions import Action
from turnstile.executor.queue_manager.inputs import (
    Admit,
    Cancel,
    DefineAction,
    Ended,
    Input,
    Started,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.queue_manager.state import State


class World:
    def __init__(self, **fields: Any) -> None:
        self.state = State()
        joined = WorkerChanged(worker_id="w", pools=frozenset({"default"}), concurrency=1)
        self.turn([DefineAction(action=Action(ref="a", **fields)), joined], 0.0)

    def turn(self, inputs: Sequence[Input], now: float) -> list[str]:
        out = decide(self.state, inputs, now)
        rows = [ended_row(each) for each in out.finished]
        return [
            f"{each.previous_status or '-'} {each.status} {each.attempt} at {each.changed_at.timestamp():g}"
            for each in changes_of(out, rows)
        ]

    def admit(self, now: float = 1.0, **fields: Any) -> list[str]:
        return self.turn([Admit(action_ref="a", **fields)], now)

    def end(self, status: Any = Status.COMPLETED, *, now: float, **fields: Any) -> list[str]:
        grant = self.state.executions[1].grant
        assert grant is not None
        report = AttemptEnded(execution_id=1, grant=grant, status=status)
        source = SimpleNamespace(body=SimpleNamespace(body=report))
        return self.turn([Ended(execution_id=1, grant=grant, status=status, source=source, **fields)], now)


ADMITTED = ["- queued 0 at 1", "queued scheduled 1 at 1"]


def test_what_ends_before_its_start_was_reported_was_running_all_the_same() -> None:
    world = World()
    assert world.admit() == ADMITTED
    assert world.end(now=5.0, started_at=2.0, completed_at=3.0) == [
        "scheduled running 1 at 2",
        "running completed 1 at 3",
    ]


def test_a_reported_start_is_told_once() -> None:
    world = World()
    world.admit()
    grant = world.state.executions[1].grant
    assert grant is not None
    started = Started(execution_id=1, grant=grant, at=2.0)
    assert world.turn([started, started], 2.5) == ["scheduled running 1 at 2"]
    assert world.end(now=5.0, started_at=2.0, completed_at=3.0) == ["running completed 1 at 3"]


def test_a_retry_is_delayed_and_queued_before_it_is_scheduled_again() -> None:
    world = World(retry=RetryPolicy(max_attempts=2, delay_seconds=1.0, jitter=0.0))
    world.admit()
    assert world.end(Status.FAILED, now=5.0, started_at=2.0, is_retryable=True) == [
        "scheduled running 1 at 2",
        "running delayed 1 at 5",
    ]
    assert world.turn([], 6.5) == ["delayed queued 1 at 6.5", "queued scheduled 2 at 6.5"]


def test_what_a_lost_worker_had_is_queued_again() -> None:
    world = World()
    world.admit()
    assert world.turn([WorkerGone(worker_id="w")], 4.0) == ["scheduled queued 1 at 4"]


def test_what_is_not_due_is_delayed_from_its_admission() -> None:
    world = World()
    assert world.admit(run_at=10.0) == ["- delayed 0 at 1"]
    assert world.turn([], 10.0) == ["delayed queued 0 at 10", "queued scheduled 1 at 10"]


@pytest.mark.parametrize("run_at", [None, 10.0])
def test_an_end_without_a_worker_follows_the_status_before_it(run_at: float | None) -> None:
    world = World(max_concurrent=0)
    world.admit(run_at=run_at)
    before = "queued" if run_at is None else "delayed"
    cancel = Cancel(execution_id=1, reason="why", action_ref="a", key="", priority=3, source=None)
    assert world.turn([cancel], 2.0) == [f"{before} cancelled 0 at 2"]


def test_an_expiry_of_what_was_delayed_and_of_what_waited() -> None:
    world = World(max_concurrent=0)
    world.admit(ttl_seconds=2.0)
    assert world.turn([], 3.0) == ["queued expired 0 at 3"]
