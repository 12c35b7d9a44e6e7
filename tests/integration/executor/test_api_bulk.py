"""Bulk cancel and retry: what a filter selects, within bounds, continued by a cursor."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.support.served import Served


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1, submitter_keys=True, runs=False)
    await api.define("c.d", max_concurrent=1, runs=False)
    api.join()
    return api


async def ask(api: Served, verb: str, wanted: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await _post(api, verb, {"filter": wanted, **fields})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


async def _post(api: Served, verb: str, body: Any, **headers: str) -> httpx.Response:
    return await api.http.post(f"/api/v1/executions/{verb}", json=body, headers=headers)


def ids(outcome: dict[str, Any]) -> list[int]:
    return [item["id"] for item in outcome["items"]]


async def end(api: Served, execution_ids: Sequence[int], status: str = "failed") -> None:
    for execution_id in execution_ids:
        await api.run(execution_id, status)


async def statuses(api: Served) -> dict[str, int]:
    rows = await api.database.fetch("SELECT status::text, count(*) FROM ledger.current_execution GROUP BY 1")
    return {row[0]: row[1] for row in rows}


async def test_a_bulk_cancel_ends_what_waits_and_requests_the_rest_to_stop(api: Served) -> None:
    mine = await api.submit_many("a.b", 3)
    await api.start(mine[0])
    (other,) = await api.submit_many("c.d", 1)
    outcome = await ask(api, "cancel", {"action_ref": "a.b"}, reason="no longer needed")
    assert [(item["id"], item["status"]) for item in outcome["items"]] == [
        (mine[2], "cancelled"), (mine[1], "cancelled"), (mine[0], "running")
    ]  # fmt: skip
    assert (outcome["matched"], outcome["changed"], outcome["next_cursor"]) == (3, 3, None)
    assert (await api.get(f"/executions/{mine[1]}"))["error"]["message"] == "no longer needed"
    await api.until_status(other, "scheduled")


async def test_a_cursor_continues_where_the_previous_call_ended(api: Served) -> None:
    mine = await api.submit_many("a.b", 5)
    seen: list[list[int]] = []
    cursor = None
    for _ in range(3):
        outcome = await ask(api, "cancel", {"action_ref": "a.b"}, limit=2, cursor=cursor)
        cursor = outcome["next_cursor"]
        seen.append(ids(outcome))
    assert (seen, cursor) == ([mine[:2:-1], mine[2:0:-1], mine[:1]], None)


async def test_a_bulk_retry_keeps_the_former_order(api: Served) -> None:
    mine = await api.submit_many("a.b", 4)
    await end(api, mine[:3])
    await end(api, mine[3:], "completed")
    first = await ask(api, "retry", {"action_ref": "a.b"}, limit=2)
    rest = await ask(api, "retry", {"action_ref": "a.b"}, limit=2, cursor=first["next_cursor"])
    assert (ids(first), ids(rest), rest["next_cursor"]) == (mine[:2], mine[2:3], None)
    again = [item["retry_id"] for item in first["items"] + rest["items"]]
    assert again == sorted(again)
    assert [(await api.get(f"/executions/{i}"))["retry_of"] for i in again] == mine[:3]
    assert (await statuses(api))["failed"] == 3


async def test_a_call_repeated_with_its_key_retries_nothing_twice_nor_its_own_results(api: Served) -> None:
    mine = await api.submit_many("a.b", 3)
    await end(api, mine)
    first, second = [await _keyed(api, limit=2) for _ in range(2)]
    assert (first["changed"], second["changed"]) == (2, 0)
    assert second["items"] == first["items"]
    copies = [item["retry_id"] for item in first["items"]]
    await end(api, copies)
    # What was made under another key, or by hand, comes from that call all the same.
    by_hand = (await api.http.post(f"/api/v1/executions/{copies[0]}/retry")).json()["id"]
    await end(api, [by_hand])
    (unrelated,) = await api.submit_many("a.b", 1)
    await end(api, [unrelated])
    again = await _keyed(api, limit=10)
    assert (ids(again), again["changed"]) == ([*mine, unrelated], 2)
    assert [item["retry_id"] for item in again["items"][:2]] == copies
    other = await ask(api, "retry", {"action_ref": "a.b"}, dry_run=True)
    assert ids(other) == sorted([*mine, *copies, by_hand, unrelated])


async def _keyed(api: Served, **fields: Any) -> dict[str, Any]:
    body = {"filter": {"action_ref": "a.b"}, **fields}
    answer = await _post(api, "retry", body, **{"Idempotency-Key": "k"})
    return dict(answer.json())


async def test_a_refused_retry_has_its_reason_and_the_others_are_made(api: Served) -> None:
    await api.define("a.b", max_concurrent=1, max_queued=1, runs=False)
    mine = []
    for _ in range(3):
        mine.append((await api.submit("a.b"))["id"])
        await end(api, mine[-1:])
    outcome = await ask(api, "retry", {"action_ref": "a.b"})
    assert (outcome["matched"], outcome["changed"]) == (3, 2)
    assert [item["problem"] and item["problem"]["code"] for item in outcome["items"]] == [
        None, None, "queue_full"
    ]  # fmt: skip


INVALID: list[tuple[Any, str, str]] = [
    ({"filter": {}}, "invalid_message", "filter: an empty filter"),
    ({"filter": {"metadata": {}}}, "invalid_message", "filter: an empty filter"),
    ([], "invalid_message", "body"),
    ({"filter": {"action": "a.b"}}, "unknown_field", "filter.action"),
    ({"filter": {"action_ref": "no.such"}}, "unknown_action", "filter.action_ref"),
    ({"filter": {"action_ref": "a.b"}, "cursor": "x"}, "invalid_message", "cursor"),
    ({"filter": {"action_ref": "a.b", "status": None}}, "invalid_message", "filter.status: null is"),
    ({"ids": [1], "filter": {"action_ref": "a.b"}}, "invalid_message", "ids: give either"),
]


async def test_an_invalid_call_is_refused_with_code_and_field(api: Served) -> None:
    for verb, status in (("cancel", "completed"), ("retry", "queued")):
        wrong_status = {"filter": {"status": [status]}}
        for body, code, message in [*INVALID, (wrong_status, "invalid_message", "filter.status: ")]:
            answer = await _post(api, verb, body)
            assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
            assert message in answer.json()["detail"]


async def some_of_each(api: Served) -> dict[str, int]:
    """One failed, completed and cancelled execution each, a scheduled and a queued one."""
    failed, completed, scheduled, queued, cancelled = await api.submit_many("a.b", 5)
    await end(api, [failed])
    await end(api, [completed], "completed")
    await api.until_offered(scheduled)
    await ask_for(api, "cancel", ids=[cancelled])
    return {
        "failed": failed,
        "completed": completed,
        "cancelled": cancelled,
        "scheduled": scheduled,
        "queued": queued,
    }


async def ask_for(api: Served, verb: str, **body: Any) -> dict[str, Any]:
    answer = await _post(api, verb, body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def left_out(outcome: dict[str, Any]) -> dict[str | None, tuple[int, str]]:
    return {each["status"]: (each["count"], each["reason"]) for each in outcome["left_out"]}


async def test_a_dry_run_says_what_is_left_out_and_why(api: Served) -> None:
    await some_of_each(api)
    before = await statuses(api)
    everything = {"action_ref": "a.b"}
    outcome = await ask(api, "retry", everything, dry_run=True)
    assert outcome["by_status"] == {"failed": 1}
    assert left_out(outcome) == {
        "completed": (1, "not selected: retry these by their status, completed"),
        "cancelled": (1, "not selected: retry these by their status, cancelled"),
        "scheduled": (1, "has not ended"),
        "queued": (1, "has not ended"),
    }
    outcome = await ask(
        api, "retry", {**everything, "status": ["completed", "failed", "queued"]}, dry_run=True
    )
    assert outcome["by_status"] == {"failed": 1, "completed": 1}
    assert left_out(outcome) == {"queued": (1, "has not ended")}
    outcome = await ask(api, "cancel", everything, dry_run=True)
    assert outcome["by_status"] == {"queued": 1, "scheduled": 1}
    assert left_out(outcome) == dict.fromkeys(("failed", "completed", "cancelled"), (1, "has ended"))
    assert not outcome["left_out_is_partial"]
    assert await statuses(api) == before
