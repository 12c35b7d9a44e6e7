"""Submitting over HTTP alone: what is repeated, what is not, and in which order."""

import asyncio
import json
from collections.abc import Callable, Mapping

import pytest

from tests.support.http_server import answering
from turnstile.client import AsyncClient, AsyncHandle, NotReceived, Rejected, Request, Unavailable

_LATER = (503, b"the proxy knows no server")


class _FakeApi:
    """Answers `POST /executions`; `fails` decides from the number of the list."""

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self._fails = fails
        self.lists: list[list[dict[str, object]]] = []

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        assert path == "/api/v1/executions"
        items = json.loads(body)
        self.lists.append(items)
        return _LATER if self._fails(len(self.lists)) else (202, self._accepted(items))

    def _accepted(self, items: list[dict[str, object]]) -> bytes:
        full = {"type": "urn:x", "title": "x", "status": 429, "code": "queue_full", "detail": "it is full"}
        accepted = {"id": 1, "status": "queued", "position": 1, "duplicate": False}
        answers = [full if each["action_ref"] == "full" else accepted for each in items]
        return json.dumps({"items": answers}).encode()

    def refs(self) -> list[object]:
        return [item["action_ref"] for items in self.lists for item in items]


async def test_requests_are_sent_in_lists_in_order_and_each_has_its_answer() -> None:
    api = _FakeApi()
    with answering(api.answer) as url:
        async with AsyncClient(http_url=url) as client:
            requests = [Request(action_ref=f"a{number}") for number in range(1200)]
            requests[3] = Request(action_ref="no such name")
            requests[4] = Request(action_ref="full")
            answers = await client.submit_many(requests)
            await asyncio.gather(*(client.submit(f"b{number}") for number in range(100)))
    expected = [f"a{number}" for number in range(1200) if number not in (3, 4)]
    assert api.refs() == [*expected[:3], "full", *expected[3:], *(f"b{number}" for number in range(100))]
    # 500 at most in a list; what is submitted while a list is sent goes into the next one.
    assert [len(each) for each in api.lists][:3] == [499, 500, 200]
    assert len(api.lists) < 8
    refused = {index: each.code for index, each in enumerate(answers) if isinstance(each, Rejected)}
    assert refused == {3: "invalid_message", 4: "queue_full"}


async def test_a_mapping_is_a_request_and_a_wrong_one_is_rejected_by_its_place() -> None:
    api = _FakeApi()
    given: list[Request | Mapping[str, object]] = [
        {"action_ref": "a", "parameters": {"n": 1}, "priority": 2},
        {"action_ref": "a", "prio": 2},
        {"parameters": {}},
        Request(action_ref="b"),
    ]
    with answering(api.answer) as url:
        async with AsyncClient(http_url=url) as client:
            answers = await client.submit_many(given)
            with pytest.raises(
                TypeError, match=r"requests\[1\]: expected a Request, or a mapping like .* not str"
            ):
                await client.submit_many([Request(action_ref="a"), "a"])  # type: ignore[list-item]
    assert api.lists == [
        [
            {"action_ref": "a", "parameters": {"n": 1}, "priority": 2, "metadata": {}},
            {"action_ref": "b", "parameters": {}, "metadata": {}},
        ]
    ]
    assert [isinstance(each, AsyncHandle) for each in answers] == [True, False, False, True]
    assert [str(each) for each in answers[1:3]] == [
        "unknown_field: requests[1].prio: unknown field; did you mean priority?",
        "invalid_message: requests[2].action_ref: required, but missing",
    ]


async def test_requests_of_several_traces_are_sent_in_one_list() -> None:
    api = _FakeApi()
    traces = [f"00-{number:032x}-b7ad6b7169203331-01" for number in (1, 2)]
    with answering(api.answer) as url:
        async with AsyncClient(http_url=url) as client:
            await client.submit_many(
                [
                    Request(action_ref="a", traceparent=traces[0]),
                    Request(action_ref="b", traceparent=traces[1]),
                ]
            )
            # One trace is in the header, which each executor knows.
            await client.submit_many([Request(action_ref="c", traceparent=traces[0])] * 2)
    assert [[each.get("traceparent") for each in items] for items in api.lists] == [traces, [None, None]]


async def test_a_request_with_a_key_is_repeated_and_one_without_is_not() -> None:
    api = _FakeApi(fails=lambda number: number == 1)
    with answering(api.answer) as url:
        async with AsyncClient(http_url=url) as client:
            first, second = await asyncio.gather(
                client.submit("keyed", idempotency_key="k"), client.submit("other"), return_exceptions=True
            )
    assert isinstance(first, AsyncHandle)
    assert isinstance(second, Unavailable)
    assert "may have been stored" in str(second)
    assert "idempotency_key" in str(second)
    assert api.refs() == ["keyed", "other", "keyed"]


async def test_repeats_end_with_the_answer_timeout() -> None:
    api = _FakeApi(fails=lambda _: True)
    with answering(api.answer) as url:
        async with AsyncClient(http_url=url, answer_timeout="500ms") as client, asyncio.timeout(5):
            with pytest.raises(Unavailable, match="HTTP 503"):
                await client.submit("keyed", idempotency_key="k")
    assert len(api.lists) > 1


async def test_what_was_not_received_is_repeated_until_the_api_is_there(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with AsyncClient(http_url=url, answer_timeout="500ms") as client:
        with pytest.raises(NotReceived, match="TURNSTILE_API_URL") as missing:
            await client.submit("noop")
        assert "executor serve" in str(missing.value)
        with pytest.raises(NotReceived):
            await client.get(1)
        with pytest.raises(NotReceived):
            _ = [event async for event in client.handle(1).events()]


async def test_a_client_outside_its_block_or_loop_says_so() -> None:
    client = AsyncClient(http_url="http://127.0.0.1:1")
    with pytest.raises(RuntimeError, match="inside its `async with` block"):
        await client.submit("noop")
    async with client:
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.submit("noop"))
