"""What waits at resources, totals and rates is explained over HTTP, and the gates that it passed are kept.

Which reason counts, and every position, have unit tests (`tests/unit/questions`).
"""

from typing import Any

import pytest

from tests.support.served import Served


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
