"""GET /executions/{id}/logs: what attempts have written, also while they run, and nothing twice."""

import hashlib

import pytest

from tests.support.served import Served
from turnstile.common.report_wire import LogPiece
from turnstile.executor.history.reports import ReportWriter


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a", max_concurrent=1)
    api.join()
    return api


async def running(api: Served) -> int:
    execution_id = int((await api.submit("a"))["id"])
    await api.start(execution_id)
    return execution_id


async def append(api: Served, execution_id: int, start: int, text: str, attempt: int = 1) -> None:
    sender, grant = api.worker.sender, api.worker.offered[execution_id].grant
    piece = LogPiece(execution_id=execution_id, attempt=attempt, grant=grant, start=start, text=text)
    secret_hash = hashlib.sha256(sender.secret.encode()).digest()
    assert not await ReportWriter(api.database).append_logs(sender.worker_id, secret_hash, [piece])


async def end(api: Served, execution_id: int) -> None:
    """End it, so long ago that no executor may still be storing its log."""
    api.worker.end(execution_id)
    await api.until_status(execution_id, "completed")
    await api.database.fetch("UPDATE ledger.execution SET completed_at = completed_at - interval '1 minute'")


async def test_a_page_is_bounded_and_the_next_one_continues_behind_it(api: Served) -> None:
    one = await running(api)
    for number in range(5):
        await append(api, one, number * 2, f"{number}\n")
    await append(api, one, 10, "5\n")
    await end(api, one)
    texts, cursor = [], None
    while True:
        page = await api.get(f"/executions/{one}/logs", limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(page["items"]) <= 2
        texts += [item["text"] for item in page["items"]]
        cursor = page["next_cursor"]
        if page["ended"]:
            break
    assert texts == [f"{number}\n" for number in range(6)]


async def test_one_attempt_can_be_read_and_ends_before_the_execution(api: Served) -> None:
    one = await running(api)
    await append(api, one, 0, "first\n")
    api.worker.give_back(one)
    await api.start(one)
    await append(api, one, 0, "second\n", attempt=2)
    both = await api.get(f"/executions/{one}/logs")
    assert [(item["attempt"], item["text"]) for item in both["items"]] == [(1, "first\n"), (2, "second\n")]
    assert not both["ended"]
    first = await api.get(f"/executions/{one}/logs", attempt=1)
    assert ([item["text"] for item in first["items"]], first["ended"]) == (["first\n"], True)
    second = await api.get(f"/executions/{one}/logs", attempt=2)
    assert ([item["text"] for item in second["items"]], second["ended"]) == (["second\n"], False)


async def test_an_invalid_parameter_is_refused_by_name(api: Served) -> None:
    one = await running(api)
    for path, status, field in (
        ("/executions/999/logs", 404, "execution_id"),
        (f"/executions/{one}/logs?attempt=0", 422, "attempt"),
        (f"/executions/{one}/logs?after=nonsense", 422, "cursor"),
        (f"/executions/{one}/logs?cursor=nonsense", 422, "cursor"),
    ):
        answer = await api.http.get(f"/api/v1{path}")
        assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (status, field)
