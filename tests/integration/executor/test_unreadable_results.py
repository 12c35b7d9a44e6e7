"""Results that no reader of JSON could read are left out of pages, and stop no page and no queue."""

import pytest
from pydantic_core import from_json

from tests.support.served import Served


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


KEPT = {"deepest": nested(196), "longest": "9" * 4300}
LEFT_OUT = {
    "too deep in a page": nested(197),
    "too deep in a message": nested(200),
    "too deep by itself": nested(230),
    "too deep for any writer": nested(1500),
    "too long": "9" * 4301,
    "too long and negative": f"-{'9' * 5000}",
}


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a")
    api.join(concurrency=20)
    return api


async def ended(api: Served, result: str) -> int:
    """Let a worker report any text as the result."""
    execution_id = int((await api.submit("a"))["id"])
    await api.until_offered(execution_id)
    api.worker.end(execution_id, result=result.encode())
    await api.until_status(execution_id, "completed")
    return execution_id


async def test_pages_show_null_for_what_cannot_be_read(api: Served) -> None:
    ids = {await ended(api, text): text for text in (*KEPT.values(), *LEFT_OUT.values())}
    answer = await api.http.get("/api/v1/executions", params={"limit": 100})
    assert answer.status_code == 200
    # As strict a reader as ours.
    items = from_json(answer.content)["items"]
    assert {item["id"] for item in items} == set(ids)
    for item in items:
        text = ids[item["id"]]
        assert item["result"] == (from_json(text) if text in KEPT.values() else None), text[:20]
        assert (await api.get(f"/executions/{item['id']}"))["result"] == item["result"]


async def test_pages_show_no_documents_for_parameters_that_cannot_be_read(api: Served) -> None:
    execution_id = (await api.submit("a"))["id"]
    await api.database.fetch(
        "UPDATE ledger.execution SET parameters = $2::text::jsonb, metadata = $2::text::jsonb WHERE id = $1",
        execution_id,
        f'{{"x": {nested(230)}}}',
    )
    for shown in ((await api.get("/executions"))["items"][0], await api.get(f"/executions/{execution_id}")):
        assert (shown["parameters"], shown["metadata"]) == ({}, {})
