"""How an execution is shown, and the sentence that says why it waits and how long (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.cli.client import Json
from turnstile.executor.cli.execution_view import (
    gate_rows,
    help_sentence,
    path_state,
    run_duration,
    status_text,
    waiting_sentence,
)

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
SINCE = "2026-11-21T07:29:15Z"


def execution(why: str | None, *, key: str | None = None, **fields: Any) -> Json:
    """Return an execution that waits; the fields of its blocker among others."""
    blocker: dict[str, Any] = {
        "why": why, "held_by": [], "holders": 0, "since": None, "until": None, "help": "", "command": None,
    }  # fmt: skip
    blocker |= {name: fields.pop(name) for name in blocker if name in fields}
    return Json(
        action_ref="reports.render", concurrency_key=key, waiting_on=fields.pop("waiting_on", {}),
        blocker=None if why is None else blocker, **fields,
    )  # fmt: skip


def starting(earliest_seconds: float, latest_seconds: float) -> dict[str, str]:
    ends = {"earliest": earliest_seconds, "latest": latest_seconds}
    return {name: (NOW + timedelta(seconds=seconds)).isoformat() for name, seconds in ends.items()}


@pytest.mark.parametrize(
    ("waits", "sentence"),
    [
        (execution(None), ""),
        (execution("paused"), "paused"),
        (execution("full", held_by=[7], holders=1, since=SINCE), "full, held by #7 for 45s"),
        (
            execution("full", held_by=[7, 8, 9], holders=50, since=SINCE),
            "full, held by #7, #8, #9 and 47 more for up to 45s",
        ),
        (execution("granted to worker w1", since=SINCE), "granted to worker w1 for 45s"),
        (execution("not due yet", until=SINCE), "not due yet; not before 2026-11-21 07:29:15Z"),
        (execution("full", waiting_on={"position": 4}), "full; position 4 there"),
        (
            execution("full", waiting_on={"position": 4}, position=3, queue_length=17),
            "full; position 3 of 17 in reports.render",
        ),
    ],
)
def test_the_sentence_names_the_blocker_its_holders_and_the_position(waits: Json, sentence: str) -> None:
    assert waiting_sentence(waits, now=NOW) == sentence


def test_the_queue_of_a_key_is_named_with_the_key() -> None:
    waits = execution("paused", key="acme", position=1, queue_length=2)
    assert waiting_sentence(waits, now=NOW) == "paused; position 1 of 2 in reports.render, key acme"


@pytest.mark.parametrize(
    ("earliest", "latest", "words"),
    [
        (-50, -45, "its estimated start was 45 s ago"),
        (-5, -1, "starts any moment"),
        (-5, 0.4, "starts any moment"),
        (0, 45, "starts within about 45 s"),
        (20.2, 20.4, "starts in about 20 s"),
        (90, 400, "starts in about 90 s to 7 min"),
        (3 * 3600, 3 * 86400, "starts in about 3 h to 3 days"),
    ],
)
def test_a_start_is_as_precise_as_its_estimate(earliest: float, latest: float, words: str) -> None:
    waits = execution("full", position=None, estimated_start=starting(earliest, latest))
    assert waiting_sentence(waits, now=NOW) == f"full; {words}"


def test_where_what_is_ahead_runs_longer_than_any_before_no_start_is_named() -> None:
    estimate = {**starting(1, 600), "overdue": True}
    assert waiting_sentence(execution("full", estimated_start=estimate), now=NOW) == (
        "full; what is ahead runs longer than all known runs, so its start is not known"
    )


def test_what_helps_is_a_sentence_and_a_command_if_there_is_one() -> None:
    paused = execution("paused", help="Resume it", command="executor actions resume a")
    assert help_sentence(paused) == "Resume it: executor actions resume a"
    assert help_sentence(execution("not due yet", help="Nothing")) == "Nothing"


@pytest.mark.parametrize(
    ("state", "is_blocker", "holders", "words"),
    [
        ("passed", False, [], "passed"),
        ("waiting", True, [], "waits here, blocker"),
        ("waiting", False, [], "waits here"),
        ("not_reached", True, [60], "not reached, #60 waits, blocker"),
        ("elsewhere", True, [60, 61], "not passed by it, #60, #61 wait, blocker"),
    ],
)
def test_a_step_of_the_path_shows_who_waits_there_and_which_is_the_blocker(
    state: str, is_blocker: bool, holders: list[int], words: str
) -> None:
    step = Json(state=state, is_blocker=is_blocker, waiting_holders=holders)
    assert path_state(step) == words


def test_the_duration_of_a_run_is_known_once_it_has_ended() -> None:
    assert run_duration("2026-11-21T07:30:00Z", "2026-11-21T07:31:30.250Z") == "1m30s250ms"
    assert run_duration("2026-11-21T07:30:00Z", None) == ""


def test_the_status_says_that_a_run_was_asked_to_stop() -> None:
    assert status_text(Json(status="running", stopping=True)) == "running, stopping"
    assert status_text(Json(status="running", stopping=False)) == "running"
    # An executor of an earlier version does not say it.
    assert status_text(Json(status="running")) == "running"


def test_an_execution_waits_at_the_last_gate_that_it_has_not_passed() -> None:
    at, resource = "2026-01-01T00:00:00Z", Json(gate="resource r", passed_at=None)
    in_queue = gate_rows([Json(gate="queue", passed_at=None), resource])
    assert [row["passed"] for row in in_queue] == ["with the next", "waits"]
    later = gate_rows([Json(gate="queue", passed_at=at), resource])
    assert [row["passed"] for row in later] == ["2026-01-01 00:00:00Z", "waits"]
    assert later[0]["gate"] == "queue"
    ended = gate_rows([Json(gate="queue", passed_at=at), resource], has_ended=True)
    assert ended[1]["passed"] == "ended here"
