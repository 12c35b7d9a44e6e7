"""An action that fails is counted under its own name, however many actions an executor has seen."""

import pytest

from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.telemetry.metrics import OTHER, LabelValues
from turnstile.executor import metrics


@pytest.fixture(autouse=True)
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three actions have names of their own, and two further ones that fail."""
    monkeypatch.setattr(metrics, "ENDED_REFS", LabelValues(3))
    monkeypatch.setattr(metrics, "FAILING_REFS", LabelValues(2))
    monkeypatch.setattr(metrics.EXECUTIONS_ENDED, "values", {})
    monkeypatch.setattr(metrics.LAST_FAILURE, "values", {})
    for number in range(3):
        end(f"first-{number}", Status.COMPLETED)


def end(ref: str, status: Status, count: int = 1) -> None:
    metrics.count_ended(ref, status, count)


def ended(name: str) -> dict[str, int]:
    """The counts of a label value, by status, without those that are zero."""
    return {
        status: count
        for (ref, status), count in metrics.EXECUTIONS_ENDED.values.items()
        if ref == name and count
    }


def test_a_failing_action_beyond_the_first_does_not_hide_among_those_that_complete() -> None:
    for number in range(50):
        end(f"healthy-{number}", Status.COMPLETED, 10)
    end("broken", Status.COMPLETED, 2)
    end("broken", Status.FAILED, 4)
    end("broken", Status.COMPLETED)
    assert ended("broken") == {"failed": 4, "completed": 1}
    assert ended(OTHER) == {"completed": 502}
    # An increase of an outcome that has not occurred yet starts at zero.
    known = {status for ref, status in metrics.EXECUTIONS_ENDED.values if ref == "broken"}
    assert known == {str(status) for status in Status if is_terminal(status)}
    assert list(metrics.LAST_FAILURE.values) == [("broken",)]


def test_the_names_of_failing_actions_are_bounded_too() -> None:
    for number in range(5):
        end(f"broken-{number}", Status.TIMEOUT)
    assert {ref for ref, _ in metrics.EXECUTIONS_ENDED.values} == {
        *(f"first-{number}" for number in range(3)), "broken-0", "broken-1", OTHER
    }  # fmt: skip
    assert ended(OTHER) == {"timeout": 3}
    assert ended("broken-1") == {"timeout": 1}


def test_a_cancel_is_no_failure_and_gives_an_action_no_name() -> None:
    end("first-0", Status.CANCELLED)
    end("cancelled", Status.CANCELLED)
    assert ended("first-0") == {"completed": 1, "cancelled": 1}
    assert ended(OTHER) == {"cancelled": 1}
