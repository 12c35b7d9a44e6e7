"""What keeps an execution waiting, as a sentence, and what helps: the same on all screens (P10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.questions.test_explain import Scheduler, define, worker
from turnstile.common.domain.states import Status
from turnstile.executor.queries.blocker import blocker
from turnstile.executor.queries.explained import path, waiting_on
from turnstile.executor.queries.schemas import Blocker, StoredExecution, WaitingOn
from turnstile.executor.queue_manager.definitions import KeySettings, Resource, Use
from turnstile.executor.queue_manager.inputs import Admit, DefineResource, SetKey

NOW = datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
_SHAPE: TypeAdapter[Any] = TypeAdapter(WaitingOn)
_EXECUTION = StoredExecution(
    id=1, action_ref="a", concurrency_key="key 7", idempotency_key=None, priority=3, status=Status.QUEUED,
    attempt=0, parameters={}, result=None, error=None, metadata={}, worker_id="w1", created_at=NOW,
    queued_at=NOW, scheduled_at=None, started_at=None, completed_at=None, run_at=None, expires_at=None,
    retry_of=None,
)  # fmt: skip

LIMIT: Any = {"reason": "limit", "max_concurrent": 2, "active_count": 2, "holders": [11, 12]}
TOTAL: Any = {
    "reason": "total", "gate": "total", "closed": None, "units": 1, "free": 0, "capacity": 20, "position": 1,
    "position_of": "gate", "waiting": 3, "first": None, "holders": [],
}  # fmt: skip
GATE: Any = {**TOTAL, "reason": "resource", "gate": "resource cad", "units": 2, "free": 1, "capacity": 10}
RATE: Any = {
    "reason": "rate", "rate_of": "action", "starts": 100, "per_seconds": 60.0, "position": 4, "waiting": 5,
    "next_start_at": NOW,
}  # fmt: skip
POOL: Any = {"reason": "pool", "pool": "gpu", "capacity": 2, "held": 2}
NO_WORKER: Any = {"reason": "no_worker", "pool": "gpu"}
HANDED: Any = {"reason": "handing_over", "pool": "gpu"}
PUT = "executor resources put cad --capacity NUMBER"


def of(on: Any) -> Blocker:
    return blocker(_SHAPE.validate_python(on), _EXECUTION, NOW)


def caused_by(on: Any, *ids: int) -> dict[str, Any]:
    return {"root_cause": {"ids": [*ids], "on": on}}


@pytest.mark.parametrize(
    ("on", "why", "command"),
    [
        ({"reason": "paused"}, "the action is paused", "executor actions resume a"),
        (LIMIT, "2 of 2 slots in use", "executor actions limit a NUMBER"),
        (
            {**LIMIT, "max_concurrent": 0, "active_count": 0},
            "the limit of the action is 0",
            "executor actions limit a NUMBER",
        ),
        (
            {**LIMIT, "limit_of": "key"},
            "2 of 2 slots in use",
            "executor actions keys set a 'key 7' --max-concurrent NUMBER",
        ),
        (TOTAL, "needs 1 unit of the total of the action, 0 of 20 free", "executor actions apply FILE"),
        (
            {**TOTAL, "closed": "capacity_zero"},
            "max_concurrent_total of the action is 0",
            "executor actions apply FILE",
        ),
        (GATE, "needs 2 units of resource cad, 1 of 10 free", PUT),
        ({**GATE, "free": None, "capacity": None}, "needs 2 units of resource cad", PUT),
        (
            {**GATE, "units": 1, "first": {"id": 9, "units": 2}},
            "needs 1 unit of resource cad, 1 of 10 free, but #9 is ahead and needs 2",
            PUT,
        ),
        (
            {**GATE, "first": {"id": 9, "units": 2}},
            "needs 2 units of resource cad, 1 of 10 free",
            PUT,
        ),
        ({**GATE, "closed": "paused"}, "resource cad is paused", "executor resources resume cad"),
        ({**GATE, "closed": "capacity_zero"}, "the capacity of resource cad is 0", PUT),
        (
            {**GATE, "closed": "capacity_too_low", "capacity": 1},
            "needs 2 units of resource cad, whose capacity is 1",
            PUT,
        ),
        (RATE, "the rate of the action allows 100 starts per 1m", "executor actions apply FILE"),
        (
            {**RATE, "rate_of": "resource api"},
            "the rate of resource api allows 100 starts per 1m",
            "executor resources put api --rate STARTS/TIME",
        ),
        (
            NO_WORKER,
            "no live worker in pool gpu serves the action",
            "TURNSTILE_WORKER_POOLS=gpu worker serve --actions MODULE",
        ),
        (
            {**NO_WORKER, "other_pools": ["b"]},
            "no live worker in pool gpu serves the action, but a worker in pool b has it",
            "TURNSTILE_WORKER_POOLS=b,gpu worker serve --actions MODULE",
        ),
        (
            {**NO_WORKER, "other_pools": ["b", "c"]},
            "no live worker in pool gpu serves the action, but workers in the pools b, c have it",
            "TURNSTILE_WORKER_POOLS=b,gpu worker serve --actions MODULE",
        ),
        (
            POOL,
            "all 2 worker slots of pool gpu are in use",
            "TURNSTILE_WORKER_POOLS=gpu worker serve --actions MODULE",
        ),
        ({**POOL, "closed": "paused"}, "pool gpu is paused", "executor pools resume gpu"),
        (
            {**POOL, "held": 1},
            "not its turn yet in pool gpu",
            "executor pools set gpu --weight REF=NUMBER",
        ),
        ({"reason": "not_due", "run_at": NOW}, "not due yet", None),
        (HANDED, "about to start at a worker", None),
        ({**HANDED, "granted_at": NOW - timedelta(seconds=29)}, "about to start at a worker", None),
        (
            {**HANDED, "granted_at": NOW - timedelta(seconds=31)},
            "granted to worker w1, which has a free slot and has not started it",
            "executor workers show w1",
        ),
        (
            {"reason": "unavailable", "part": "broker", "message": "not connected"},
            "the executor cannot reach the broker: not connected",
            "executor doctor",
        ),
    ],
)
def test_every_reason_is_a_sentence_with_what_helps(on: Any, why: str, command: str | None) -> None:
    found = of(on)
    assert (found.why, found.command) == (why, command)
    assert found.help


def test_at_most_three_holders_are_named_and_all_are_counted() -> None:
    found = of({**LIMIT, "holders": [*range(11, 61)], "held_since": NOW})
    assert (found.held_by, found.holders, found.since) == ([11, 12, 13], 50, NOW)
    units = [{"id": 14, "units": 2}, {"id": 15, "units": 4}]
    assert of({**GATE, "holders": units}).held_by == [14, 15]


def test_what_ends_by_itself_says_when() -> None:
    assert of(RATE).until == of({"reason": "not_due", "run_at": NOW}).until == NOW
    assert of(LIMIT).until is None


def test_the_end_of_the_chain_of_causes_is_the_blocker() -> None:
    at_cad = {**GATE, "holders": [{"id": 50, "units": 9}], **caused_by(NO_WORKER, 50)}
    found = of({**LIMIT, **caused_by(at_cad, 11)})
    assert found.why == "no live worker in pool gpu serves the action of #50"
    assert found.held_by == []
    assert of({**LIMIT, **caused_by(GATE, 11)}).why == "#11 needs 2 units of resource cad, 1 of 10 free"
    # Those ahead are of its own action.
    ahead = of({**LIMIT, "active_count": 0, "holders": [], **caused_by(NO_WORKER)})
    assert ahead.why == "no live worker in pool gpu serves the action"


def test_the_limit_of_a_key_is_told_from_that_of_the_action() -> None:
    scheduler = Scheduler(
        define(max_concurrent=1),
        SetKey(action_ref="a", key="own", settings=KeySettings(has_limit=True, max_concurrent=1)),
        worker(),
    )
    for key, limit_of in (("own", "key"), ("other", "action")):
        _, waits = scheduler.admit("a", 2, key=key)
        shown = waiting_on(scheduler.on(waits)).model_dump()
        assert (shown["reason"], shown["limit_of"]) == ("limit", limit_of)


def test_the_path_marks_the_blocker_and_who_waits_there() -> None:
    scheduler = Scheduler(
        DefineResource(resource=Resource(name="cad", capacity=1, rank=1)),
        DefineResource(resource=Resource(name="api", capacity=1, rank=2)),
        define("a", Use(resource="cad", units=1), Use(resource="api", units=1)),
        define("b", Use(resource="api", units=1)),
        define("c", Use(resource="cad", units=1)),
        worker(),
    )
    scheduler.admit("b")
    (holds,) = scheduler.admit("a")
    (waits,) = scheduler.admit("c")
    steps = path(scheduler.explain(waits))
    assert [(each.gate, each.state, each.is_blocker, each.waiting_holders) for each in steps] == [
        ("queue", "passed", False, []),
        ("resource cad", "waiting", False, []),
        ("pool default", "not_reached", False, []),
        ("resource api", "elsewhere", True, [holds]),
    ]
    assert [each.is_blocker for each in path(scheduler.explain(holds))] == [False, False, True, False]


def test_what_starts_by_itself_has_no_blocker_on_its_path() -> None:
    scheduler = Scheduler(define(), worker())
    out = scheduler.turn(Admit(action_ref="a", run_at=1060.0), Admit(action_ref="a"))
    for each in out.admitted:
        steps = path(scheduler.explain(each.id))
        assert [step.gate for step in steps] == ["queue", "pool default"]
        assert not any(step.is_blocker for step in steps)
