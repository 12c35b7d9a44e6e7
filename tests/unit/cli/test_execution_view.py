"""How an execution is shown, and the sentence that says why it waits and how long (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.cli.client import Json
from turnstile.executor.cli.execution_view import gate_rows, run_duration, status_text, waiting_sentence

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


def limit(most: int, active: int, *holders: int, **rest: Any) -> dict[str, Any]:
    return {
        "reason": "limit", "max_concurrent": most, "active_count": active, "holders": [*holders], **rest
    }  # fmt: skip


def pool(held: int, **rest: Any) -> dict[str, Any]:
    return {"reason": "pool", "pool": "gpu", "closed": None, "capacity": 2, "held": held, **rest}


def no_worker(**rest: Any) -> dict[str, Any]:
    return {"reason": "no_worker", "pool": "gpu", **rest}


def handed_over(granted_at: str) -> dict[str, Any]:
    return {"reason": "handing_over", "pool": "gpu", "granted_at": f"2026-11-21T07:{granted_at}Z"}


def caused_by(on: Any, *ids: int) -> dict[str, Any]:
    return {"root_cause": {"ids": [*ids], "on": on}}


def held_by(*holders: tuple[int, int]) -> list[dict[str, int]]:
    return [{"id": execution_id, "units": units} for execution_id, units in holders]


NO_WORKER = f"no live worker in pool gpu serves the action; {START_ONE}"
AUTOCAD = "waits at resource autocad: needs 2 units, 1 of 10 free"
PAUSED_VPN = {**GATE, "gate": "resource vpn", "closed": "paused"}
SENTENCES: list[tuple[Any, str]] = [
    (None, ""),
    (limit(2, 2, 11, 12), "2 of 2 slots in use, held by #11, #12"),
    (limit(1, 1, 11), "1 of 1 slots in use, held by #11"),
    (limit(0, 0), "0 of 0 slots in use"),
    (
        limit(2, 2, 60, 61, **caused_by(no_worker(), 60, 61)),
        f"2 of 2 slots in use, held by #60, #61; #60, #61 hold slots but do not run yet: {NO_WORKER}",
    ),
    (
        limit(1, 0, **caused_by(no_worker())),
        f"0 of 1 slots in use; the executions ahead are waiting, too: {NO_WORKER}",
    ),
    ({"reason": "paused"}, "the action is paused"),
    (
        pool(3, position=4, waiting=9, holders=[60, 61, 62]),
        "all 2 worker slots of pool gpu are in use, held by #60, #61, #62; position 4 there",
    ),
    (pool(1, position=1), "waits for its turn in pool gpu; position 1 there"),
    (
        pool(2, closed="paused", position=4),
        "pool gpu is paused; executor pools resume gpu continues it; position 4 there",
    ),
    (pool(5), "all 2 worker slots of pool gpu are in use"),
    (no_worker(), NO_WORKER),
    (no_worker(other_pools=[]), NO_WORKER),
    (
        no_worker(other_pools=["default"]),
        "no live worker in pool gpu serves the action, but a worker in pool default has it; let one serve"
        " both pools (TURNSTILE_WORKER_POOLS=default,gpu), or change the action's pool"
        " (executor actions apply)",
    ),
    (
        no_worker(other_pools=["a", "b"]),
        "no live worker in pool gpu serves the action, but workers in the pools a, b have it; let one"
        " serve both pools (TURNSTILE_WORKER_POOLS=a,gpu), or change the action's pool"
        " (executor actions apply)",
    ),
    ({"reason": "not_due", "run_at": "2026-11-21T07:30:00Z"}, "not due before 2026-11-21 07:30:00Z"),
    ({"reason": "not_due", "run_at": None}, "not due yet"),
    ({"reason": "handing_over", "pool": "gpu"}, "about to start at a worker"),
    (handed_over("29:31"), "about to start at a worker"),
    (
        handed_over("27:30"),
        "its slot was granted 2m30s ago, and no worker of pool gpu has started it: they are busy, or"
        " cannot reach the broker; see their logs and /readyz",
    ),
    (
        {"reason": "unavailable", "part": "broker", "message": "not connected"},
        "the executor cannot reach the broker: not connected",
    ),
    (
        {**GATE, "holders": held_by((14, 2), (15, 4), (17, 3))},
        f"{AUTOCAD}; held by #14 (2), #15 (4), #17 (3); position 1",
    ),
    (
        {**GATE, "reason": "total", "gate": "total", "units": 1, "free": 0, "capacity": 20},
        "waits at the total of its action: needs 1 unit, 0 of 20 free; position 1",
    ),
    (
        {**GATE, "holders": held_by((60, 9)), **caused_by(no_worker(), 60)},
        f"{AUTOCAD}; held by #60 (9); position 1; #60 holds units but does not run yet: {NO_WORKER}",
    ),
    (
        limit(
            1, 1, 60,
            **caused_by({**GATE, "holders": held_by((50, 5), (51, 4)), **caused_by(PAUSED_VPN, 50, 51)}, 60),
        ),
        f"1 of 1 slots in use, held by #60; #60 holds a slot but does not run yet: {AUTOCAD}; held by"
        " #50 (5), #51 (4); position 1; #50, #51 hold units but do not run yet: resource vpn is paused",
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
]  # fmt: skip


@pytest.mark.parametrize(("waiting_on", "sentence"), SENTENCES)
def test_every_reason_is_a_sentence(waiting_on: Any, sentence: str) -> None:
    assert waiting_sentence(execution(waiting_on), now=NOW) == sentence


def test_position_reason_and_start_make_one_sentence() -> None:
    waits = execution(
        limit(4, 4, 12, 13, 14, 15), position=3, queue_length=17, estimated_start=starting(20, 45)
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
    assert waiting_sentence(waits, now=NOW) == f"about to start at a worker; {words}"


def test_only_the_first_holders_are_listed() -> None:
    assert waiting_sentence(execution(limit(50, 50, *range(50))), now=NOW).endswith("#8, #9 and 40 more")


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
