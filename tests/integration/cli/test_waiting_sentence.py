"""Why an execution waits, and until when, in a sentence (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.cli.connection import Json
from turnstile.executor.cli.waiting_sentence import waiting_sentence

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)


def execution(waiting_on: Any, *, key: str | None = None, **fields: Any) -> Json:
    return Json(action_ref="reports.render", concurrency_key=key, waiting_on=waiting_on, **fields)


def starting(earliest_seconds: float, latest_seconds: float) -> dict[str, str]:
    ends = {"earliest": earliest_seconds, "latest": latest_seconds}
    return {name: (NOW + timedelta(seconds=seconds)).isoformat() for name, seconds in ends.items()}


@pytest.mark.parametrize(
    ("waiting_on", "sentence"),
    [
        (None, ""),
        (
            {"reason": "limit", "max_concurrent": 2, "active_count": 2, "holders": [11, 12]},
            "2 of 2 slots are held by #11, #12",
        ),
        (
            {"reason": "limit", "max_concurrent": 1, "active_count": 1, "holders": [11]},
            "1 of 1 slots is held by #11",
        ),
        (
            {"reason": "limit", "max_concurrent": 0, "active_count": 0, "holders": []},
            "0 of 0 slots are held",
        ),
        ({"reason": "paused"}, "the action is paused"),
        ({"reason": "no_worker", "pool": "gpu"}, "no live worker of pool gpu serves it"),
        ({"reason": "not_due", "run_at": "2026-11-21T07:30:00Z"}, "not due before 2026-11-21 07:30:00Z"),
        ({"reason": "not_due", "run_at": None}, "not due yet"),
        ({"reason": "handing_over", "pool": "gpu"}, "only the hand-over to a worker"),
        (
            {"reason": "unavailable", "part": "broker", "message": "not connected"},
            "the executor cannot reach the broker: not connected",
        ),
        ({"reason": "of a later version"}, "of a later version"),
    ],
)
def test_every_reason_to_wait_is_a_sentence(waiting_on: Any, sentence: str) -> None:
    assert waiting_sentence(execution(waiting_on), now=NOW) == sentence


def test_place_reason_and_start_make_one_sentence() -> None:
    waits = execution(
        {"reason": "limit", "max_concurrent": 4, "active_count": 4, "holders": [12, 13, 14, 15]},
        position=3,
        queue_length=17,
        estimated_start=starting(20, 45),
    )
    assert waiting_sentence(waits, now=NOW) == (
        "position 3 of 17 in reports.render; 4 of 4 slots are held by #12, #13, #14, #15; "
        "starts in about 20 s to 45 s"
    )


def test_a_line_of_one_key_is_named_with_it() -> None:
    waits = execution({"reason": "paused"}, key="acme", position=1, queue_length=2)
    assert waiting_sentence(waits, now=NOW) == (
        "position 1 of 2 in reports.render, key acme; the action is paused"
    )


@pytest.mark.parametrize(
    ("earliest", "latest", "words"),
    [
        (-5, -1, "starts any moment"),
        (-5, 0.4, "starts any moment"),
        (0, 45, "starts within about 45 s"),
        (20.2, 20.4, "starts in about 20 s"),
        (90, 400, "starts in about 90 s to 7 min"),
        (3 * 3600, 3 * 86400, "starts in about 3 h to 3 days"),
    ],
)
def test_a_start_is_told_as_roughly_as_it_is_known(earliest: float, latest: float, words: str) -> None:
    waits = execution({"reason": "handing_over"}, position=None, estimated_start=starting(earliest, latest))
    assert waiting_sentence(waits, now=NOW) == f"only the hand-over to a worker; {words}"


def test_many_holders_are_counted_and_not_all_named() -> None:
    waiting_on = {"reason": "limit", "max_concurrent": 50, "active_count": 50, "holders": list(range(50))}
    assert waiting_sentence(execution(waiting_on), now=NOW).endswith("#8, #9 and 40 more")
