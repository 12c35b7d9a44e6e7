"""What the leader explains is shown in the API's shapes, whatever the reason."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.questions.test_explain import Scheduler, define, worker
from turnstile.executor.queries.explained import estimated_start, waiting_on
from turnstile.executor.queries.schemas import WaitingOn
from turnstile.executor.questions.estimate import Interval
from turnstile.executor.queue_manager.definitions import Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import Admit, DefineResource

_SHAPE: TypeAdapter[Any] = TypeAdapter(WaitingOn)


def shown(scheduler: Scheduler, execution_id: int) -> dict[str, Any]:
    """Return what the API shows, as JSON."""
    found = _SHAPE.dump_python(waiting_on(scheduler.on(execution_id)), mode="json")
    assert _SHAPE.validate_python(found)
    assert isinstance(found, dict)
    return found


def test_a_resource_shows_its_units_and_who_holds_them() -> None:
    scheduler = Scheduler(
        DefineResource(resource=Resource(name="cad", capacity=3)),
        define("a", Use(resource="cad", units=2)),
        worker(),
    )
    first, second = scheduler.admit("a", 2)
    found = shown(scheduler, second)
    assert (found["reason"], found["gate"], found["units"], found["free"]) == (
        "resource",
        "resource cad",
        2,
        1,
    )
    assert found["holders"] == [{"id": first, "units": 2}]
    assert (found["position"], found["position_of"], found["waiting"]) == (1, "gate", 1)


@pytest.mark.parametrize("of", ["action", "resource api"])
def test_a_rate_shows_when_the_next_start_is(of: str) -> None:
    rate = Rate(starts=1, per_seconds=60.0)
    if of == "action":
        scheduler = Scheduler(define("a", rate=rate), worker())
    else:
        scheduler = Scheduler(
            DefineResource(resource=Resource(name="api", capacity=9, rate=rate)),
            define("a", Use(resource="api", units=1)), worker(),
        )  # fmt: skip
    _, second = scheduler.admit("a", 2)
    found = shown(scheduler, second)
    assert (found["reason"], found["rate_of"], found["starts"], found["per_seconds"]) == ("rate", of, 1, 60.0)
    assert found["next_start_at"] == "1970-01-01T00:17:40Z"


def test_what_is_not_due_and_what_is_handed_over_show_their_instants() -> None:
    scheduler = Scheduler(define(), worker())
    out = scheduler.turn(Admit(action_ref="a", run_at=1060.0), Admit(action_ref="a"))
    delayed, offered = (each.id for each in out.admitted)
    assert shown(scheduler, delayed) == {"reason": "not_due", "run_at": "1970-01-01T00:17:40Z"}
    assert shown(scheduler, offered) == {
        "reason": "handing_over", "pool": "default", "granted_at": "1970-01-01T00:16:40Z",
    }  # fmt: skip


def test_the_cause_of_a_wait_for_idle_holders_is_shown() -> None:
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
    found = shown(scheduler, waits)
    assert found["gate"] == "resource cad"
    assert (found["root_cause"]["ids"], found["root_cause"]["on"]["gate"]) == ([holds], "resource api")


def test_an_estimate_is_an_interval_of_instants() -> None:
    found = estimated_start(Interval(1000.0, 1060.0))
    assert found is not None
    assert found.model_dump(mode="json") == {
        "earliest": "1970-01-01T00:16:40Z", "latest": "1970-01-01T00:17:40Z", "overdue": False,
    }  # fmt: skip
    assert estimated_start(None) is None
