"""Why an execution waits, in a sentence (P10)."""

from typing import Any

import pytest

from executor.cli.connection import Json
from executor.cli.execution_view import took, waiting_sentence


@pytest.mark.parametrize(
    ("position", "waiting_on", "sentence"),
    [
        (None, None, ""),
        (
            3,
            {"reason": "limit", "max_concurrent": 2, "active_count": 2, "holders": [11, 12]},
            "position 3; 2 of 2 slots are held, by 11, 12",
        ),
        (1, {"reason": "paused"}, "position 1; the action is paused"),
        (None, {"reason": "no_worker", "pool": "gpu"}, "no live worker serves pool gpu"),
        (
            None,
            {"reason": "not_due", "run_at": "2026-11-21T07:30:00Z"},
            "not due before 2026-11-21 07:30:00Z",
        ),
        (1, {"reason": "handing_over", "pool": "gpu"}, "position 1; only the hand-over to a worker"),
        (1, {"reason": "of a later version"}, "position 1; of a later version"),
    ],
)
def test_every_reason_to_wait_is_a_sentence(position: int | None, waiting_on: Any, sentence: str) -> None:
    assert waiting_sentence(Json(position=position, waiting_on=waiting_on)) == sentence


def test_many_holders_are_counted_and_not_all_named() -> None:
    waiting_on = {"reason": "limit", "max_concurrent": 50, "active_count": 50, "holders": list(range(50))}
    assert waiting_sentence(Json(position=1, waiting_on=waiting_on)).endswith("8, 9 and 40 more")


def test_how_long_it_ran_is_said_once_it_has_ended() -> None:
    assert took("2026-11-21T07:30:00Z", "2026-11-21T07:31:30.250Z") == "1m30s250ms"
    assert took("2026-11-21T07:30:00Z", None) == ""
