"""How an execution is shown, and the sentence that says why it waits and how long (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.cli.client import Json
from turnstile.executor.cli.execution_view import run_duration, status_text, waiting_sentence

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
START_ONE = "start one: TURNSTILE_WORKER_POOLS=gpu worker serve --actions MODULE"

GATE: Any = {
    "reason": "resource", "gate": "resource autocad", "closed": None, "units": 2, "free": 1, "capacity": 10,
    "position": 1, "position_of": "gate", "waiting": 3, "holders": [],
}  # fmt: skip
RATE: Any = {
    "reason": "rate", "gate": "rate", "starts": 100, "per_seconds": 60.0, "position": 4,
    "position_of": "action", "waiting": 5, "next_start_at": "2026-11-21T07:30:00Z",
}  # fmt: skip


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
            "2 of 2 slots in use, held by #11, #12",
        ),
        (
            {"reason": "limit", "max_concurrent": 1, "active_count": 1, "holders": [11]},
            "1 of 1 slots in use, held by #11",
        ),
        (
            {"reason": "limit", "max_concurrent": 0, "active_count": 0, "holders": []},
            "0 of 0 slots in use",
        ),
        (
            {
                "reason": "limit",
                "max_concurrent": 2,
                "active_count": 2,
                "holders": [60, 61],
                "root_cause": {"ids": [60, 61], "on": {"reason": "no_worker", "pool": "gpu"}},
            },
            "2 of 2 slots in use, held by #60, #61; #60, #61 hold slots but do not run yet: no live"
            f" worker in pool gpu serves the action; {START_ONE}",
        ),
        (
            {
                "reason": "limit",
                "max_concurrent": 1,
                "active_count": 0,
                "holders": [],
                "root_cause": {"ids": [], "on": {"reason": "no_worker", "pool": "gpu"}},
            },
            "0 of 1 slots in use; the executions ahead are waiting, too: no live worker in pool gpu serves"
            f" the action; {START_ONE}",
        ),
        ({"reason": "paused"}, "the action is paused"),
        (
            {
                "reason": "pool",
                "pool": "gpu",
                "closed": None,
                "capacity": 2,
                "held": 3,
                "position": 4,
                "waiting": 9,
                "holders": [60, 61, 62],
            },
            "all 2 worker slots of pool gpu are in use, held by #60, #61, #62; position 4 there",
        ),
        (
            {"reason": "pool", "pool": "gpu", "closed": None, "capacity": 2, "held": 1, "position": 1},
            "waits for its turn in pool gpu; position 1 there",
        ),
        (
            {"reason": "pool", "pool": "gpu", "closed": "paused", "capacity": 2, "held": 2, "position": 4},
            "pool gpu is paused; executor pools resume gpu continues it; position 4 there",
        ),
        (
            {"reason": "no_worker", "pool": "gpu"},
            f"no live worker in pool gpu serves the action; {START_ONE}",
        ),
        (
            {"reason": "no_worker", "pool": "gpu", "other_pools": []},
            f"no live worker in pool gpu serves the action; {START_ONE}",
        ),
        (
            {"reason": "no_worker", "pool": "gpu", "other_pools": ["default"]},
            "no live worker in pool gpu serves the action, but a worker in pool default has it; let one serve"
            " both pools (TURNSTILE_WORKER_POOLS=default,gpu), or change the action's pool"
            " (executor actions apply)",
        ),
        (
            {"reason": "no_worker", "pool": "gpu", "other_pools": ["a", "b"]},
            "no live worker in pool gpu serves the action, but workers in the pools a, b have it; let one"
            " serve both pools (TURNSTILE_WORKER_POOLS=a,gpu), or change the action's pool"
            " (executor actions apply)",
        ),
        ({"reason": "not_due", "run_at": "2026-11-21T07:30:00Z"}, "not due before 2026-11-21 07:30:00Z"),
        ({"reason": "not_due", "run_at": None}, "not due yet"),
        (
            {"reason": "pool", "pool": "gpu", "capacity": 4, "held": 5},
            "all 4 worker slots of pool gpu are in use",
        ),
        ({"reason": "handing_over", "pool": "gpu"}, "about to be dispatched to a worker"),
        (
            {"reason": "handing_over", "pool": "gpu", "granted_at": "2026-11-21T07:29:31Z"},
            "about to be dispatched to a worker",
        ),
        (
            {"reason": "handing_over", "pool": "gpu", "granted_at": "2026-11-21T07:27:30Z"},
            "its slot was granted 2m30s ago, and no worker of pool gpu has claimed it: they are busy, or"
            " cannot reach the broker; see their logs and /readyz",
        ),
        (
            {"reason": "unavailable", "part": "broker", "message": "not connected"},
            "the executor cannot reach the broker: not connected",
        ),
        (
            {**GATE, "holders": [{"id": 14, "units": 2}, {"id": 15, "units": 4}, {"id": 17, "units": 3}]},
            "waits at resource autocad: needs 2 units, 1 of 10 free; held by #14 (2), #15 (4), #17 (3);"
            " position 1",
        ),
        (
            {**GATE, "reason": "total", "gate": "total", "units": 1, "free": 0, "capacity": 20},
            "waits at the total of its action: needs 1 unit, 0 of 20 free; position 1",
        ),
        ({**GATE, "closed": "paused"}, "resource autocad is paused"),
        ({**GATE, "closed": "capacity_zero"}, "the capacity of resource autocad is 0"),
        (
            {**GATE, "closed": "capacity_too_low", "capacity": 1},
            "needs 2 units of resource autocad, whose capacity is 1",
        ),
        (
            {**RATE, "rate_of": "resource partner-api"},
            "waits for the rate of resource partner-api: 100 starts per 1m; next start 2026-11-21 07:30:00Z;"
            " position 4 of its action",
        ),
        (
            {**RATE, "rate_of": "action", "next_start_at": None},
            "waits for the rate of its action: 100 starts per 1m; position 4 of its action",
        ),
        ({"reason": "of a later version"}, "of a later version"),
    ],
)
def test_every_reason_is_a_sentence(waiting_on: Any, sentence: str) -> None:
    assert waiting_sentence(execution(waiting_on), now=NOW) == sentence


def test_position_reason_and_start_make_one_sentence() -> None:
    waits = execution(
        {"reason": "limit", "max_concurrent": 4, "active_count": 4, "holders": [12, 13, 14, 15]},
        position=3,
        queue_length=17,
        estimated_start=starting(20, 45),
    )
    assert waiting_sentence(waits, now=NOW) == (
        "position 3 of 17 in reports.render; 4 of 4 slots in use, held by #12, #13, #14, #15; "
        "starts in about 20 s to 45 s"
    )


def test_the_queue_of_a_key_is_named_with_the_key() -> None:
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
def test_a_start_is_as_precise_as_its_estimate(earliest: float, latest: float, words: str) -> None:
    waits = execution({"reason": "handing_over"}, position=None, estimated_start=starting(earliest, latest))
    assert waiting_sentence(waits, now=NOW) == f"about to be dispatched to a worker; {words}"


def test_only_the_first_holders_are_listed() -> None:
    waiting_on = {"reason": "limit", "max_concurrent": 50, "active_count": 50, "holders": list(range(50))}
    assert waiting_sentence(execution(waiting_on), now=NOW).endswith("#8, #9 and 40 more")


def test_the_duration_of_a_run_is_known_once_it_has_ended() -> None:
    assert run_duration("2026-11-21T07:30:00Z", "2026-11-21T07:31:30.250Z") == "1m30s250ms"
    assert run_duration("2026-11-21T07:30:00Z", None) == ""


def test_the_status_says_that_a_run_was_asked_to_stop() -> None:
    assert status_text(Json(status="running", stopping=True)) == "running, stopping"
    assert status_text(Json(status="running", stopping=False)) == "running"
    # An executor of an earlier version does not say it.
    assert status_text(Json(status="running")) == "running"
