"""Publications as AMQP messages: what shares a message, and dead letters of what has no message."""

import json
from datetime import UTC, datetime
from uuid import UUID

from turnstile.common.domain.errors import Code
from turnstile.common.requests import read_requested_body
from turnstile.common.worker_protocol import Heard, ToSession
from turnstile.common.worker_wire import decode_to_session
from turnstile.executor.leader.dispatcher import client_message, own_messages
from turnstile.executor.leader.ports import CancelRequest, Probe, Publication, RefusedRequest, Request


def to_session(name: str, number: int, epoch: int = 1) -> Publication:
    body = ToSession(epoch=epoch, number=number, body=Heard(heartbeat=1, committed=0))
    return Publication(to=f"session {name} 1", body=body)


def letter(request: object, **fields: object) -> Publication:
    reason = {"x-error-code": Code.UNKNOWN_EXECUTION, "x-error": "why", "request": request, **fields}
    return Publication(to="dead letters", body=reason)


def test_messages_of_one_session_and_epoch_share_a_message_in_order_and_nothing_else_does() -> None:
    publications = [
        to_session("a b", 1), to_session("c", 1), to_session("a b", 2), to_session("a b", 1, epoch=2),
        Publication(to="executor.heartbeats", body=Probe(epoch=1, number=7)),
    ]  # fmt: skip
    found = own_messages(publications, "secret")
    probe, *sessions = found
    assert probe[1] == [4]
    assert (probe[0].exchange, probe[0].routing_key) == ("executor", "executor.heartbeats")
    assert [
        (
            message.routing_key,
            [(each.epoch, each.number) for each in decode_to_session(message.body)],
            indices,
        )
        for message, indices in sessions
    ] == [
        ("worker.a b.1", [(1, 1), (1, 2)], [0, 2]),
        ("worker.c.1", [(1, 1)], [1]),
        ("worker.a b.1", [(2, 1)], [3]),
    ]


def test_at_most_a_thousand_messages_share_one() -> None:
    found = own_messages([to_session("a", number) for number in range(1, 2502)], "secret")
    assert [len(decode_to_session(message.body)) for message, _ in found] == [1000, 1000, 501]


def test_the_dead_letter_of_a_cancel_that_was_stored_is_the_cancel_again() -> None:
    cancel = CancelRequest(execution_id=None, idempotency_key="k", reason="")
    found = client_message(letter(cancel))
    assert found is not None
    assert json.loads(found.body) == {"idempotency_key": "k"}
    assert (found.type, found.routing_key) == ("execution.cancel_requested",) * 2
    headers = dict(found.headers or {})
    assert (headers["x-error-code"], headers["x-error"]) == ("unknown_execution", "why")


def test_the_dead_letter_of_a_cancel_that_was_stored_has_the_properties_of_its_message() -> None:
    sent = {
        "message_id": "m", "correlation_id": "c", "reply_to": "r", "app_id": "mine",
        "timestamp": "2030-01-01T00:00:00Z", "headers": {"traceparent": "t", "schema_version": 1},
    }  # fmt: skip
    cancel = CancelRequest(execution_id=9, idempotency_key=None, reason="", properties=json.dumps(sent))
    found = client_message(letter(cancel))
    assert found is not None
    assert (found.message_id, found.correlation_id, found.reply_to, found.app_id) == ("m", "c", "r", "mine")
    assert found.timestamp == datetime(2030, 1, 1, tzinfo=UTC)
    headers = dict(found.headers or {})
    assert (headers["traceparent"], headers["x-error-code"]) == ("t", "unknown_execution")


def test_the_dead_letter_of_a_submission_can_be_published_again() -> None:
    body = {"action_ref": "a", "parameters": {"n": 1}, "delay": 3.0, "ttl": 5.0}
    request = Request(
        action_ref="a", parameters=b'{"n":1}', request_hash=UUID(int=0), delay_seconds=3.0, ttl_seconds=5.0,
        traceparent="t", is_submission=True,
    )  # fmt: skip
    found = client_message(letter(request, message_id="id"))
    assert found is not None
    assert read_requested_body(found.body) == read_requested_body(json.dumps(body).encode())
    assert (found.type, found.message_id, found.app_id) == ("execution.requested", "id", "database")
    assert (found.headers or {})["traceparent"] == "t"
    unread = RefusedRequest(code=Code.INVALID_MESSAGE, message="why", body=b"{")
    again = client_message(letter(unread, message_id="id"))
    assert again is not None
    assert again.body == b"{"
