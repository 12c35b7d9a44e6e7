"""What waits at resources, totals and rates is explained over HTTP, and the gates that it passed are kept.

Which reason counts, and every position, have unit tests (`tests/unit/questions`).
"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.served import Served

NO_GPU_WORKER = {"reason": "no_worker", "pool": "gpu", "other_pools": []}


@pytest.fixture
async def api(api: Served) -> Served:
    api.join(concurrency=20)
    return api


async def put_resource(api: Served, name: str, capacity: int, **fields: Any) -> None:
    answer = await api.http.put(f"/api/v1/resources/{name}", json={"capacity": capacity, **fields})
    assert answer.status_code in (200, 201), answer.text


async def gated(api: Served, *uses: str | tuple[str, int], ref: str = "a.b", **fields: Any) -> None:
    named = [(use, 1) if isinstance(use, str) else use for use in uses]
    await api.define(ref, uses=[{"resource": name, "units": units} for name, units in named], **fields)


async def waiting_on(api: Served, execution_id: int) -> dict[str, Any]:
    return dict((await api.get(f"/executions/{execution_id}"))["waiting_on"])


async def test_a_resource_names_units_holders_and_position(api: Served) -> None:
    await put_resource(api, "autocad", 5)
    await gated(api, ("autocad", 2))
    ids = await api.submit_many("a.b", 5)
    await api.until_offered(*ids[:2])
    for position, execution_id in enumerate(ids[2:], start=1):
        shown = await api.get(f"/executions/{execution_id}")
        assert (shown["status"], shown["position"], shown["queue_length"]) == ("queued", position, 3)
        assert shown["waiting_on"] == {
            "gate": "resource autocad", "closed": None, "units": 2, "free": 1, "capacity": 5,
            "position": position, "position_of": "gate", "waiting": 3,
            "holders": [{"id": ids[0], "units": 2}, {"id": ids[1], "units": 2}], "reason": "resource",
            "root_cause": None,
        }  # fmt: skip
    await api.run(ids[0])
    await api.until_offered(ids[2])
    assert (await waiting_on(api, ids[3]))["position"] == 1


async def test_a_total_counts_over_all_keys(api: Served) -> None:
    await api.define("a.b", concurrency_key="/k", max_concurrent=1, max_concurrent_total=2)
    first, second, third, behind = [(await api.submit("a.b", parameters={"k": key}))["id"] for key in "xyzz"]
    await api.until_offered(first, second)
    shown = await waiting_on(api, third)
    assert (shown["reason"], shown["gate"], shown["units"], shown["free"]) == ("total", "total", 1, 0)
    assert shown["holders"] == [{"id": first, "units": 1}, {"id": second, "units": 1}]
    on = await waiting_on(api, behind)
    assert (on["reason"], on["root_cause"]["on"]["reason"]) == ("limit", "total")


async def test_a_holder_at_a_later_gate_is_the_cause_down_to_what_that_waits_for(api: Served) -> None:
    await put_resource(api, "first", 1, rank=1)
    await put_resource(api, "then", 1, rank=2)
    await gated(api, "then", ref="a.then")
    await gated(api, "first", "then", ref="a.both", max_concurrent=1)
    await gated(api, "first")
    blocker = (await api.submit("a.then"))["id"]
    await api.until_offered(blocker)
    one, behind = await api.submit_many("a.both", 2)
    (other,) = await api.submit_many("a.b", 1)
    on_then = await waiting_on(api, one)
    assert (on_then["gate"], on_then["holders"]) == ("resource then", [{"id": blocker, "units": 1}])
    on = await waiting_on(api, other)
    assert (on["gate"], on["holders"]) == ("resource first", [{"id": one, "units": 1}])
    assert on["root_cause"] == {"ids": [one], "on": on_then}
    on = await waiting_on(api, behind)
    assert (on["reason"], on["holders"], on["root_cause"]) == ("limit", [one], {"ids": [one], "on": on_then})


async def test_a_closed_gate_is_named_by_what_waits_in_its_queue(api: Served) -> None:
    await put_resource(api, "cad", 4)
    await gated(api, ("cad", 2), max_concurrent=1)
    ids = await api.submit_many("a.b", 3)
    await api.until_offered(ids[0])
    changes: dict[str, dict[str, Any]] = {
        "paused": {"capacity": 4, "paused": True}, "capacity_zero": {"capacity": 0},
        "capacity_too_low": {"capacity": 1},
    }  # fmt: skip
    for closed, change in changes.items():
        await put_resource(api, "cad", **change)
        for position, execution_id in enumerate(ids[1:], start=1):
            shown = await api.get(f"/executions/{execution_id}")
            assert (shown["position"], shown["queue_length"]) == (position, 2)
            on = shown["waiting_on"]
            assert (on["reason"], on["gate"], on["closed"]) == ("resource", "resource cad", closed)
            assert (on["units"], on["capacity"]) == (2, change["capacity"])
            assert (on["position"], on["position_of"], on["waiting"]) == (position, "queue", None)
            assert on["holders"] == [{"id": ids[0], "units": 2}]


async def test_a_rate_names_the_time_of_the_next_start(api: Served) -> None:
    await put_resource(api, "partner", 10, rate={"starts": 2, "per": 3600})
    await gated(api, "partner", rate={"starts": 5, "per": 60})
    ids = await api.submit_many("a.b", 4)
    await api.until_offered(*ids[:2])
    started = datetime.fromisoformat((await api.get(f"/executions/{ids[0]}"))["scheduled_at"])
    for position, execution_id in enumerate(ids[2:], start=1):
        on = await waiting_on(api, execution_id)
        next_start = datetime.fromisoformat(on.pop("next_start_at"))
        assert abs(next_start - started - timedelta(hours=1)) < timedelta(milliseconds=1)
        assert on == {
            "reason": "rate", "gate": "rate", "rate_of": "resource partner", "starts": 2,
            "per_seconds": 3600.0, "position": position, "position_of": "action", "waiting": 2,
        }  # fmt: skip


async def test_a_pool_without_a_worker_is_named(api: Served) -> None:
    await api.define("a.gpu", pool="gpu")
    execution_id = (await api.submit("a.gpu"))["id"]
    on = await waiting_on(api, execution_id)
    assert on == {**NO_GPU_WORKER, "other_pools": ["default"]}


async def _blocker(api: Served) -> int:
    """Return an execution that holds the second of the two resources of `a.b`."""
    await put_resource(api, "first", 1, rank=1)
    await put_resource(api, "then", 1, rank=2)
    await gated(api, "first", "then")
    await gated(api, "then", ref="a.then")
    blocker: int = (await api.submit("a.then"))["id"]
    await api.until_offered(blocker)
    return blocker


async def test_the_gates_are_kept_from_the_first_to_the_end(api: Served) -> None:
    blocker = await _blocker(api)
    (one,) = await api.submit_many("a.b", 1)
    steps = (await api.get(f"/executions/{one}"))["gates"]
    assert [(step["gate"], step["passed_at"] is None) for step in steps] == [
        ("queue", False), ("resource first", False), ("resource then", True)
    ]  # fmt: skip
    assert [step["units"] for step in steps] == [1, 1, 1]
    assert steps[1]["arrived_at"] == steps[0]["passed_at"]
    await api.run(blocker)
    await api.until_offered(one)
    granted = (await api.get(f"/executions/{one}"))["gates"]
    assert granted[:2] == steps[:2]
    assert granted[2]["passed_at"] is not None
    await api.run(one)
    assert (await api.get(f"/executions/{one}"))["gates"] == granted


async def test_in_its_queue_an_execution_names_the_gate_that_keeps_it_there(api: Served) -> None:
    await put_resource(api, "r", 3)
    await gated(api, ("r", 2), max_concurrent=2)
    ids = await api.submit_many("a.b", 3)
    await api.until_offered(ids[0])
    head, behind = [await api.get(f"/executions/{each}") for each in ids[1:]]
    assert (head["position"], head["gates"]) == (
        1,
        [
            {"gate": "queue", "units": 1, "arrived_at": head["queued_at"], "passed_at": None},
            {"gate": "resource r", "units": 2, "arrived_at": None, "passed_at": None},
        ],
    )
    assert behind["waiting_on"]["reason"] == "limit"
    assert [step["gate"] for step in behind["gates"]] == ["queue"]
    await api.run(ids[0])
    await api.until_offered(ids[1])
    passed = (await api.get(f"/executions/{ids[1]}"))["gates"]
    assert passed[0]["passed_at"] == passed[1]["arrived_at"] == passed[1]["passed_at"] is not None


async def test_a_total_is_a_gate_of_what_is_granted_and_of_what_waits_for_it(api: Served) -> None:
    await api.define("a.b", concurrency_key="/k", max_concurrent_total=1)
    granted, waits = [(await api.submit("a.b", parameters={"k": key}))["id"] for key in "xy"]
    await api.until_offered(granted)
    steps = {each: (await api.get(f"/executions/{each}"))["gates"] for each in (granted, waits)}
    assert [[(step["gate"], step["passed_at"] is None) for step in steps[each]] for each in steps] == [
        [("queue", False), ("total", False)],
        [("queue", True), ("total", True)],
    ]


async def test_the_list_has_the_gates_of_what_has_ended_and_passed_gates(api: Served) -> None:
    await put_resource(api, "r", 2)
    await gated(api, "r")
    await api.define("plain")
    (plain,) = await api.submit_many("plain", 1)
    one, running = await api.submit_many("a.b", 2)
    await api.run(one)
    await api.run(plain)
    await api.start(running)
    listed = {item["id"]: item for item in (await api.get("/executions"))["items"]}
    assert listed[one]["gates"] == (await api.get(f"/executions/{one}"))["gates"] != []
    assert not any("gates" in listed[each] for each in (plain, running))


async def test_what_ended_while_it_waited_has_the_gates_that_it_passed_and_the_one_where_it_waited(
    api: Served,
) -> None:
    await _blocker(api)
    between, queued = await api.submit_many("a.b", 2)
    waited = (await api.get(f"/executions/{between}"))["gates"]
    for each in (queued, between):
        assert (await api.http.post(f"/api/v1/executions/{each}/cancel")).status_code == 202
    ended, in_queue = [await api.get(f"/executions/{each}") for each in (between, queued)]
    assert (ended["status"], ended["gates"]) == ("cancelled", waited)
    assert [(step["gate"], step["passed_at"]) for step in waited[2:]] == [("resource then", None)]
    assert in_queue["gates"] == [
        {"gate": "queue", "units": 1, "arrived_at": in_queue["queued_at"], "passed_at": None}
    ]
    listed = {item["id"]: item for item in (await api.get("/executions"))["items"]}
    assert listed[queued]["gates"] == in_queue["gates"]
