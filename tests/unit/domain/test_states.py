"""The table of transitions."""

from collections.abc import Iterable

import pytest

from tests.support.states import HOLDS_SLOT, INITIAL, may_move
from turnstile.common.domain.states import TERMINAL, TRANSITIONS, Status, is_terminal
from turnstile.worker.core.outcomes import (
    Cancelled,
    Completed,
    Failed,
    Failure,
    TimedOut,
    failure_of,
    status_of,
)

FAILURE = Failure(type="Broken", message="it broke")


def reachable(start: Iterable[Status]) -> set[Status]:
    """Return `start` and all states that can follow."""
    found = set(start)
    while True:
        further = {t.target for t in TRANSITIONS if found & t.sources} - found
        if not further:
            return found
        found |= further


def test_every_state_is_reachable_from_an_initial_one() -> None:
    assert reachable(INITIAL) == set(Status)


def test_nothing_leads_out_of_a_terminal_state() -> None:
    assert not any(transition.sources & TERMINAL for transition in TRANSITIONS)
    assert not any(may_move(source, target) for source in TERMINAL for target in Status)


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL))
def test_every_other_state_can_end_and_be_cancelled(status: Status) -> None:
    assert reachable({status}) & TERMINAL
    assert Status.CANCELLED in reachable({status})


def test_only_a_grant_takes_a_slot() -> None:
    into = [t for t in TRANSITIONS if t.target in HOLDS_SLOT and t.sources - HOLDS_SLOT]
    assert [(t.name, t.sources) for t in into] == [("grant", frozenset({Status.QUEUED}))]


def test_only_what_is_at_a_worker_completes_fails_times_out_or_is_abandoned() -> None:
    for target in (Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.ABANDONED):
        assert {source for source in Status if may_move(source, target)} == HOLDS_SLOT


def test_every_transition_has_its_own_name() -> None:
    names = [transition.name for transition in TRANSITIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Completed(result_json="1"), Status.COMPLETED),
        (Failed(failure=FAILURE), Status.FAILED),
        (TimedOut(failure=FAILURE), Status.TIMEOUT),
        (Cancelled(failure=FAILURE), Status.CANCELLED),
    ],
)
def test_every_outcome_leads_to_a_terminal_state_that_a_running_one_may_reach(
    outcome: Completed | Failed | TimedOut | Cancelled, status: Status
) -> None:
    assert status_of(outcome) is status
    assert is_terminal(status)
    assert may_move(Status.RUNNING, status)
    assert failure_of(outcome) == (None if status is Status.COMPLETED else FAILURE)
