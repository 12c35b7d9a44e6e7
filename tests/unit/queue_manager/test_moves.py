"""Every move of the queue manager is in the table of transitions (P3)."""

import sys
from typing import Any

import pytest

from tests.proof.queue_manager.walks import walk
from tests.support.states import may_move
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import transitions
from turnstile.executor.queue_manager.state import Execution

SEEDS = 25


def _is_move(execution: Execution, status: Status, module: str) -> bool:
    """Return whether it is none of a construction, a load, or of an execution that begins delayed."""
    is_built = hasattr(execution, "attempt") and execution.status is not status
    return is_built and "queue_manager" in module and (status is not Status.DELAYED or execution.attempt > 0)


def test_every_move_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[Status, Status]] = set()
    finish, assign = transitions.finish, object.__setattr__

    def setting(execution: Execution, name: str, value: Any) -> None:
        if name == "status" and _is_move(execution, value, sys._getframe(1).f_globals["__name__"]):
            seen.add((execution.status, value))
        assign(execution, name, value)

    def finishing(state: Any, execution: Execution, status: Status, *others: Any, **named: Any) -> None:
        seen.add((execution.status, status))
        finish(state, execution, status, *others, **named)

    monkeypatch.setattr(Execution, "__setattr__", setting, raising=False)
    monkeypatch.setattr(transitions, "finish", finishing)
    for seed in range(SEEDS):
        walk(seed)
    # Reclaimed and expired at once.
    seen.discard((Status.RUNNING, Status.EXPIRED))
    assert [move for move in seen if not may_move(*move)] == []
    # The walks have seen something of everything; no attempt in them times out.
    assert {after for _, after in seen} == set(Status) - {Status.TIMEOUT}
