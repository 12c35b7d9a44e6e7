"""The one table of transitions."""

from collections.abc import Iterable

import pytest

from turnstile.common.domain.outcomes import (
    Cancelled,
    Completed,
    Failed,
    Failure,
    TimedOut,
    failure_of,
    status_of,
)
from turnstile.common.domain.states import (
    HOLDS_SLOT,
    INITIAL,
    TERMINAL,
    TRANSITIONS,
    Status,
    is_terminal,
    may_move,
    sources_of,
)

FAILURE = Failure(type="Broken", message="it broke")


def reachable(start: Iterable[Status]) -> set[Status]:
    """Return the states that can follow, these included."""
    found = set(start)
    while True:
        further = {t.target for t in TRANSITIONS if found & t.sources} - found
        if not further:
            return found
        found |= further


def test_every_state_is_reached_from_a_birth() -> None:
    assert reachable(INITIAL) == set(Status)


def test_nothing_leads_out_of_a_terminal_state() -> None:
    assert not any(transition.sources & TERMINAL for transition in TRANSITIONS)
    assert not any(may_move(source, target) for source in TERMINAL for target in Status)


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL))
def test_every_other_state_can_end(status: Status) -> None:
    assert reachable({status}) & TERMINAL
    assert Status.CANCELLED in reachable({status})


def test_a_slot_is_taken_by_a_grant_and_by_nothing_else() -> None:
    into = [t for t in TRANSITIONS if t.target in HOLDS_SLOT and t.sources - HOLDS_SLOT]
    assert [(t.name, t.sources) for t in into] == [("grant", frozenset({Status.QUEUED}))]


def test_only_what_was_claimed_completes_fails_or_times_out() -> None:
    for target in (Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.ABANDONED):
        assert {source for source in Status if may_move(source, target)} == {Status.RUNNING}
    assert sources_of("claim") == {Status.SCHEDULED}


def test_nothing_expires_once_it_runs() -> None:
    assert sources_of("expire") == set(Status) - TERMINAL - {Status.RUNNING}


def test_whatever_lives_can_be_cancelled() -> None:
    assert sources_of("cancel") == set(Status) - TERMINAL


def test_what_waits_again_passes_through_the_line() -> None:
    assert {t.name for t in TRANSITIONS if t.target is Status.QUEUED} == {"wake", "reclaim"}
    assert not may_move(Status.DELAYED, Status.SCHEDULED)


def test_every_transition_has_a_name_of_its_own() -> None:
    names = [transition.name for transition in TRANSITIONS]
    assert len(names) == len(set(names))


def test_an_unknown_transition_is_a_bug() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        sources_of("teleport")


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
