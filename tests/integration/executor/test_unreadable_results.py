"""Unreadable results, written directly into the table, block no reader and no slot."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic_core import from_json

from tests.support.protocol import Protocol
from tests.support.served import Served
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.domain.errors import Refusal
from turnstile.executor.completion_listener import read
from turnstile.executor.completions import read_completions


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


KEPT = {"deepest": nested(196), "longest": "9" * 4300}
TOO_DEEP_FOR_ANY_WRITER = nested(1500)
TOO_DEEP_FOR_ANY_READER = nested(100_000)
LEFT_OUT = {
    "too deep in a page": nested(197),
    "too deep in a message": nested(200),
    "too deep by itself": nested(230),
    "too long": "9" * 4301,
    "too long and negative": f"-{'9' * 5000}",
}
BEYOND_RANGE = f"[{'9' * 400}.5]"


async def hostile_end(protocol: Protocol, result_json: str) -> int:
    """End one execution as a worker's account can: by a call of the protocol, with any result."""
    (execution_id,) = await protocol.submit("a")
    await protocol.claim(execution_id)
    await protocol.finish(execution_id, result_json=result_json)
    return execution_id


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=None)


def delivered(message: Outgoing, body: bytes | None = None) -> Delivery:
    fields: dict[str, Any] = {
        "headers": message.headers,
        "type": message.type,
        "routing_key": message.routing_key,
        "body": message.body if body is None else body,
        "kept": True,
    }
    return cast(Delivery, SimpleNamespace(**fields))


def with_result(message: Outgoing, text: str) -> bytes:
    before, member, after = message.body.partition(b'"result":null')
    assert member
    return before + b'"result":' + text.encode() + after


async def ends_of(protocol: Protocol, *ids: int) -> dict[int, Outgoing]:
    messages = await read_completions(protocol.database, ids, result_bytes_max=64 * 1024)
    return {int(message.correlation_id or 0): message for message in messages}


async def test_a_completion_is_published_without_an_unreadable_result(protocol: Protocol) -> None:
    ids = {
        await hostile_end(protocol, text): text
        for text in (*KEPT.values(), *LEFT_OUT.values(), TOO_DEEP_FOR_ANY_WRITER)
    }
    ends = await ends_of(protocol, *ids)
    assert set(ends) == set(ids)
    for execution_id, text in ids.items():
        result = from_json(ends[execution_id].body)["result"]
        assert result == (from_json(text) if text in KEPT.values() else None), text[:20]
        assert read(delivered(ends[execution_id])).execution_id == execution_id


async def test_a_completion_with_any_result_frees_its_slot(protocol: Protocol) -> None:
    execution_id = await hostile_end(protocol, "null")
    message = (await ends_of(protocol, execution_id))[execution_id]
    for text in (*LEFT_OUT.values(), BEYOND_RANGE, '"\\u0000"'):
        ended = read(delivered(message, with_result(message, text)))
        assert (ended.execution_id, ended.attempt) == (execution_id, 1)
    with pytest.raises(Refusal, match="not JSON"):
        read(delivered(message, with_result(message, TOO_DEEP_FOR_ANY_READER)))


async def test_a_long_error_is_published_shortened(protocol: Protocol) -> None:
    execution_id = await hostile_end(protocol, "null")
    await protocol.connection.execute(
        "UPDATE execution SET status = 'failed', result = NULL, error_type = repeat('x', 100000),"
        " error_message = repeat('y', 20000000) WHERE id = $1",
        execution_id,
    )
    message = (await ends_of(protocol, execution_id))[execution_id]
    assert len(message.body) < 64 * 1024
    assert read(delivered(message)).execution_id == execution_id


async def test_pages_show_null_for_what_cannot_be_read(protocol: Protocol, api: Served) -> None:
    texts = [*KEPT.values(), *LEFT_OUT.values(), TOO_DEEP_FOR_ANY_WRITER, BEYOND_RANGE]
    ids = {await hostile_end(protocol, text): text for text in texts}
    answer = await api.http.get("/api/v1/executions", params={"limit": 100})
    assert answer.status_code == 200
    # As strict a reader as ours.
    items = from_json(answer.content)["items"]
    assert {item["id"] for item in items} == set(ids)
    for item in items:
        text = ids[item["id"]]
        if text is not BEYOND_RANGE:
            assert item["result"] == (from_json(text) if text in KEPT.values() else None), text[:20]
        shown = await api.get(f"/executions/{item['id']}")
        assert shown["result"] == item["result"]


async def test_pages_show_no_documents_for_parameters_that_cannot_be_read(
    protocol: Protocol, api: Served
) -> None:
    (execution_id,) = await protocol.submit("a")
    await protocol.connection.execute(
        "UPDATE execution SET parameters = $2::text::jsonb, metadata = $2::text::jsonb WHERE id = $1",
        execution_id,
        f'{{"x": {nested(230)}}}',
    )
    for shown in ((await api.get("/executions"))["items"][0], await api.get(f"/executions/{execution_id}")):
        assert (shown["parameters"], shown["metadata"]) == ({}, {})


async def test_an_unreadable_execution_delays_no_other_completion(
    protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer version may have written a status that this one does not know."""
    ids = await protocol.submit("a", 3)
    await protocol.run(*ids)
    await protocol.connection.execute("ALTER TYPE execution_status ADD VALUE 'vanished'")
    await protocol.connection.execute(
        "ALTER TABLE execution DROP CONSTRAINT ck_execution_completed_at_iff_terminal"
    )
    await protocol.connection.execute("UPDATE execution SET status = 'vanished' WHERE id = $1", ids[1])
    messages = await read_completions(protocol.database, await protocol.due_completions(), result_bytes_max=0)
    assert sorted(message.correlation_id or "" for message in messages) == [str(ids[0]), str(ids[2])]
    (line,) = [record for record in caplog.records if record.getMessage() == "outcome_unreadable"]
    assert vars(line)["execution_id"] == ids[1]
