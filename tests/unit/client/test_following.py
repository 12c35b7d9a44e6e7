"""A request of a transaction is followed by its id; lists are read page by page; handles log and retry."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from pydantic import SecretStr

from tests.support.http_server import answering
from turnstile import AsyncClient, Client, Rejected

_ID = UUID("0b9d7f06-0000-4000-8000-000000000001")
_EXECUTION = {
    "action_ref": "a",
    "status": "queued",
    "attempt": 0,
    "parameters": {},
    "metadata": {},
    "created_at": "2030-01-01T00:00:00Z",
}
_COMPLETED = {"status": "completed", "completed_at": "2030-01-01T00:00:01Z"}


class _Api:
    """Admits the request at the third question, and lists five executions, two on a page."""

    def __init__(self) -> None:
        self.submissions: list[dict[str, Any]] = [
            {"status": "pending"},
            {"status": "pending"},
            {"status": "admitted", "execution_id": 5},
        ]

        self.statuses: list[str] | None = None
        self.limits: list[str] | None = None
        self.waits: list[list[str] | None] = []
        self.refuses_waits = False
        self.ends_at = 0
        self.retries: list[bytes] = []

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(path)
        match parts.path.removeprefix("/api/v1").split("/")[1:]:
            case ["submissions", request_id]:
                found = self.submissions.pop(0) if len(self.submissions) > 1 else self.submissions[0]
                return 200, json.dumps({"request_id": request_id, **found}).encode()
            case ["executions"]:
                query = parse_qs(parts.query)
                self.statuses, self.limits = query.get("status"), query.get("limit")
                first = int(query.get("cursor", ["5"])[0])
                items = [{**_EXECUTION, "id": id_} for id_ in range(first, max(first - 2, 0), -1)]
                cursor = str(first - 2) if first > 2 else None
                return 200, json.dumps({"items": items, "next_cursor": cursor}).encode()
            case ["executions", id_, "retry"]:
                self.retries.append(body)
                answer = {"id": int(id_) + 1, "status": "queued", "position": 1, "duplicate": False}
                return 202, json.dumps(answer).encode()
            case ["executions", "1"]:
                return 200, json.dumps({**_EXECUTION, "id": 1, **_COMPLETED}).encode()
            case ["executions", id_]:
                wait = parse_qs(parts.query).get("wait")
                self.waits.append(wait)
                if wait and self.refuses_waits:
                    return 503, b"{}"
                ended = _COMPLETED if len(self.waits) == self.ends_at else {}
                return 200, json.dumps({**_EXECUTION, "id": int(id_), **ended}).encode()
            case ["workers"]:
                self.statuses = parse_qs(parts.query).get("state")
                return 200, json.dumps({"items": [], "next_cursor": None}).encode()
            case ["executions", id_, "logs"]:
                return 200, json.dumps({"items": [], "ended": True, "next_cursor": None}).encode()
            case _:
                raise AssertionError(path)


@pytest.fixture
def api() -> _Api:
    return _Api()


@pytest.fixture
def url(api: _Api) -> Iterator[str]:
    with answering(api.answer) as url:
        yield url


async def test_a_request_is_followed_until_its_execution_has_a_handle(url: str, api: _Api) -> None:
    async with AsyncClient(http_url=url) as client:
        assert (await client.submission(_ID)).status == "pending"
        handle = await client.admitted(str(_ID), timeout="30s")
        assert handle.id == 5
        retried = await handle.retry(parameters={"a": 1})
        assert (retried.id, (await retried.logs()).ended) == (6, True)
        assert (await client.retry(5)).id == 6
        assert api.retries == [b'{"parameters":{"a":1}}', b"{}"]
        with pytest.raises(Rejected, match=r"invalid_parameters: parameters\.pin: a secret of pydantic"):
            await client.retry(5, parameters={"pin": SecretStr("1234")})
        assert [each.id async for each in client.list_all(action_ref="a")] == [5, 4, 3, 2, 1]


def test_the_blocking_client_does_the_same(url: str, api: _Api) -> None:
    with Client(http_url=url) as client:
        handle = client.admitted(_ID, int)
        assert (handle.id, handle.result_type) == (5, int)
        assert (handle.retry().id, handle.logs().ended) == (6, True)
        assert client.retry(5, parameters={}).id == 6
        assert api.retries == [b"{}", b'{"parameters":{}}']
        assert [each.id for each in client.list_all()] == [5, 4, 3, 2, 1]
        assert api.limits == ["1000"]
        api.submissions = [{"status": "rejected", "code": "queue_full", "message": "a: full"}]
        with pytest.raises(Rejected, match="queue_full: a: full"):
            client.admitted(_ID)
        api.submissions = [{"status": "pending"}]
        with pytest.raises(TimeoutError, match=f"request {_ID} was not admitted within 0.1 s; it goes on"):
            client.admitted(_ID, timeout=0.1)
        with pytest.raises(Rejected, match="request_id: 'x' is not a UUID"):
            client.submission("x")


def test_one_status_may_be_given_by_itself(url: str, api: _Api) -> None:
    with Client(http_url=url) as client:
        for status in ("failed", ["failed"]):
            client.list(status=status)
            assert api.statuses == ["failed"]


def test_one_state_of_workers_may_be_given_by_itself(url: str, api: _Api) -> None:
    with Client(http_url=url) as client:
        for state in ("live", ["live"]):
            client.workers(state=state)
            assert api.statuses == ["live"]


def test_the_timeout_of_a_wait_says_what_has_not_ended(url: str) -> None:
    with Client(http_url=url) as client:
        with pytest.raises(TimeoutError) as one:
            client.handle(9).result(timeout="1s")
        with pytest.raises(TimeoutError) as several:
            client.wait_many([1, 8, 9], timeout=1)
    assert str(one.value) == (
        "execution 9 (queued) has not ended within 1s; it goes on, so wait again or longer: client.get(9) "
        "says what it waits for"
    )
    assert str(several.value) == (
        "2 of 3 executions have not ended within 1 s: 8 (queued), 9 (queued); they go on, so wait again or "
        "longer: client.get(8) says what it waits for"
    )


def test_the_timeout_of_a_wait_says_that_no_status_could_be_read(unused_tcp_port: int) -> None:
    with (
        Client(http_url=f"http://127.0.0.1:{unused_tcp_port}") as client,
        pytest.raises(
            TimeoutError, match=r"execution 9 \(its status could not be read\) has not ended within"
        ),
    ):
        client.wait(9, timeout="50ms")


@pytest.mark.parametrize(
    ("refuses_waits", "asked"),
    [(False, [None, ["10s"], ["10s"]]), (True, [None, ["10s"], None, ["10s"], None])],
)
def test_without_a_broker_the_api_is_asked_to_answer_at_the_end(
    url: str, api: _Api, refuses_waits: bool, asked: list[list[str] | None]
) -> None:
    api.refuses_waits, api.ends_at = refuses_waits, len(asked)
    with Client(http_url=url) as client:
        assert client.wait(9, timeout="30s").status == "completed"
    assert api.waits == asked
