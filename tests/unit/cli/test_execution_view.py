"""How an execution is shown, and the sentence that says why it waits and how long (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.cli.client import Json
from turnstile.executor.cli.execution_view import (
    cause_lines,
    gate_rows,
    path_rows,
    run_duration,
    status_text,
    waiting_sentence,
)

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
    return Json(
        action_ref="reports.render", concurrency_key=key, worker_id="w1", waiting_on=waiting_on, **fields
    )  # fmt: skip


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
AUTOCAD = "needs 2 units of resource autocad, 1 of 10 free"
PAUSED_VPN = {**GATE, "gate": "resource vpn", "closed": "paused"}
SENTENCES: list[tuple[Any, str]] = [
    (None, ""),
    (limit(2, 2, 11, 12), "2 of 2 slots in use, held by #11, #12"),
    (limit(1, 1, 11), "1 of 1 slots in use, held by #11"),
    (limit(0, 0), "0 of 0 slots in use"),
    (
        limit(2, 2, 60, 61, **caused_by(no_worker(), 60, 61)),
        f"{NO_WORKER}; because of this 2 of 2 slots in use, held by #60, #61",
    ),
    (
        limit(1, 0, **caused_by(no_worker())),
        f"{NO_WORKER}; because of this 0 of 1 slots in use",
    ),
    ({"reason": "paused"}, "the action is paused"),
    (
        pool(3, position=4, waiting=9, holders=[60, 61, 62]),
        "all 2 worker slots of pool gpu are in use, held by #60, #61, #62; position 4 there",
    ),
    (pool(1, position=1), "not its turn yet in pool gpu; position 1 there"),
    (
        pool(2, closed="paused", position=4),
        "pool gpu is paused; executor pools resume gpu continues it; position 4 there",
    ),
    (pool(5, holders=[]), "all 2 worker slots of pool gpu are in use"),
    (
        pool(2, holders=[60], held_since="2026-11-21T07:29:15Z"),
        "all 2 worker slots of pool gpu are in use, held by #60 for 45s",
    ),
    (
        pool(2, holders=[60, 61, 62, 63], held_since="2026-11-21T07:29:15Z"),
        "all 2 worker slots of pool gpu are in use, held by #60, #61, #62 and 1 more for up to 45s",
    ),
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
        "granted 2m30s ago to worker w1, which has a free slot and has not started it:"
        " see its log and /readyz",
    ),
    (
        {"reason": "unavailable", "part": "broker", "message": "not connected"},
        "the executor cannot reach the broker: not connected",
    ),
    (
        {**GATE, "holders": held_by((14, 2), (15, 4), (17, 3))},
        f"{AUTOCAD}; held by #14 (2), #15 (4), #17 (3); position 1 there",
    ),
    (
        {**GATE, "reason": "total", "gate": "total", "units": 1, "free": 0, "capacity": 20},
        "needs 1 unit of the total of its action, 0 of 20 free; position 1 there",
    ),
    (
        {**GATE, "holders": held_by((60, 9)), **caused_by(no_worker(), 60)},
        f"{NO_WORKER}; because of this {AUTOCAD}; held by #60 (9); position 1 there",
    ),
    (
        limit(
            1, 1, 60,
            **caused_by({**GATE, "holders": held_by((50, 5), (51, 4)), **caused_by(PAUSED_VPN, 50, 51)}, 60),
        ),
        "resource vpn is paused; because of this 1 of 1 slots in use, held by #60",
    ),
    (
        {**GATE, "units": 1, "free": 1, "position": 2, "first": {"id": 9, "units": 2}},
        "needs 1 unit of resource autocad, 1 of 10 free, but #9 is ahead and needs 2; position 2 there",
    ),
    (
        {**GATE, "position": 2, "first": {"id": 9, "units": 2}},
        f"{AUTOCAD}; position 2 there",
    ),
    ({**GATE, "closed": "paused"}, "resource autocad is paused"),
    ({**GATE, "closed": "capacity_zero"}, "the capacity of resource autocad is 0"),
    (
        {**GATE, "closed": "capacity_too_low", "capacity": 1},
        "needs 2 units of resource autocad, whose capacity is 1",
    ),
    (
        {**RATE, "rate_of": "resource partner-api"},
        "the rate of resource partner-api allows 100 starts per 1m; next start 2026-11-21 07:30:00Z;"
        " position 4 of its action",
    ),
    (
        {**RATE, "rate_of": "action", "next_start_at": None},
        "the rate of its action allows 100 starts per 1m; position 4 of its action",
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
        "4 of 4 slots in use, held by #12, #13, #14 and 1 more; position 3 of 17 in reports.render; "
        "starts in about 20 s to 45 s"
    )


def test_the_queue_of_a_key_is_named_with_the_key() -> None:
    waits = execution({"reason": "paused"}, key="acme", position=1, queue_length=2)
    assert waiting_sentence(waits, now=NOW) == (
        "the action is paused; position 1 of 2 in reports.render, key acme"
    )


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
    waits = execution({"reason": "handing_over"}, position=None, estimated_start=starting(earliest, latest))
    assert waiting_sentence(waits, now=NOW) == f"about to start at a worker; {words}"


def test_where_what_is_ahead_runs_longer_than_any_before_no_start_is_named() -> None:
    estimate = {**starting(1, 600), "overdue": True}
    assert waiting_sentence(execution(limit(1, 1, 7), estimated_start=estimate), now=NOW) == (
        "1 of 1 slots in use, held by #7; what is ahead runs longer than all known runs, so its start is "
        "not known"
    )


def test_only_the_first_holders_are_listed() -> None:
    sentence = waiting_sentence(execution(limit(50, 50, *range(50))), now=NOW)
    assert sentence.endswith("held by #0, #1, #2 and 47 more")


def test_the_causes_lead_from_what_it_waits_for_to_the_blocker() -> None:
    at_autocad = {**GATE, "holders": held_by((50, 5), (51, 4)), **caused_by(PAUSED_VPN, 50, 51)}
    waits = execution(limit(1, 1, 60, **caused_by(at_autocad, 60)))
    assert [*cause_lines(waits, now=NOW)] == [
        f"#60 holds a slot and waits: {AUTOCAD}; held by #50 (5), #51 (4); position 1 there",
        "#50, #51 hold units and wait: resource vpn is paused",
    ]
    behind = execution(limit(1, 0, **caused_by(no_worker())))
    assert [*cause_lines(behind, now=NOW)] == [f"The executions ahead wait: {NO_WORKER}"]


def test_the_way_to_a_start_shows_what_is_held_and_what_helps_where_it_waits() -> None:
    steps = [
        {"gate": "queue", "state": "passed", "units": 1, "held": 2, "capacity": None},
        {"gate": "resource autocad", "state": "waiting", "units": 2, "held": 9, "capacity": 10},
        {"gate": "pool default", "state": "not_reached", "units": 1, "held": 0, "capacity": 4},
    ]
    rows = path_rows(execution(GATE, path=steps))
    assert [(row["state"], row["held"], row["help"]) for row in rows] == [
        ("passed", "2", ""),
        ("waits here", "9 of 10", "executor resources queue autocad"),
        ("not reached", "0 of 4", ""),
    ]
    assert path_rows(execution(None)) == []


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
