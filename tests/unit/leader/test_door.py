"""The door: which messages become requests, and what the refusal of the others says."""

import json
from typing import Any
from uuid import UUID

import pytest

from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.frames import pack_publishes
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_requested_body, request_hash
from turnstile.executor.leader.door import Message, Reader, read_request_message
from turnstile.executor.leader.parameter_schemas import refusal_of_parameters
from turnstile.executor.leader.ports import CancelRequest, RefusedRequest, Request
from turnstile.executor.parameter_check import SchemaChecker

REQUESTED, CANCEL = "execution.requested", "execution.cancel_requested"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Channel:
    """A channel that stands."""

    usable = True


def message(
    body: Any, *, kind: str = REQUESTED, key: str | None = None, kept: bool = True, **properties: Any
) -> Delivery:
    """Return a message as it is received."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given: dict[str, Any] = {"message_id": "m", "headers": {}} | properties
    sent = Outgoing(exchange="", routing_key="", body=b"", type=kind, **given)
    # Of the frames of publish and header, the properties begin at the flags.
    header = pack_publishes(1, [sent], frame_bytes_max=0).split(b"\x00\x3c\x00\x00" + bytes(8), 1)[1]
    names = ["executions", key or kind]
    address = b"".join(bytes([len(name)]) + name.encode() for name in names)
    return Delivery(
        Channel(), tag=1, redelivered=False, address=address, properties=header[:-1],
        body=content if kept else b"", body_bytes=len(content), size_bytes=len(content), kept=kept,
    )  # fmt: skip


def checkers(*schemas: dict[str, Any]) -> list[SchemaChecker]:
    return [SchemaChecker(each, is_converted=False) for each in schemas]


def read(delivery: Delivery, *schemas: dict[str, Any], bytes_max: int = 1000) -> Request | CancelRequest:
    def refusal(ref: str, parameters: Any) -> tuple[Code, str] | None:
        return refusal_of_parameters(parameters, checkers(*schemas), ref)

    return read_request_message(delivery, refusal, parameters_bytes_max=bytes_max)


def refusal_of(delivery: Delivery) -> tuple[Code, str]:
    with pytest.raises(Refusal) as refused:
        read(delivery)
    return refused.value.code, refused.value.message


def test_a_request_is_read_with_all_its_fields() -> None:
    body = {
        "action_ref": "a", "parameters": {"n": 1}, "idempotency_key": "i", "concurrency_key": "c",
        "priority": 2, "run_at": "2030-01-01T00:00:00Z", "timeout": "5m", "ttl": "1h",
        "callback_url": "https://example.org/", "metadata": {"m": 1},
    }  # fmt: skip
    assert read(message(body, headers={"traceparent": TRACE})) == Request(
        action_ref="a", parameters=b'{"n":1}', metadata=b'{"m":1}', idempotency_key="i", concurrency_key="c",
        priority=2, run_at=1893456000.0, timeout_seconds=300.0, ttl_seconds=3600.0,
        callback_url="https://example.org/", traceparent=TRACE,
        request_hash=request_hash(read_requested_body(json.dumps(body).encode())),
    )  # fmt: skip


def test_a_delay_is_read_as_seconds_and_not_beside_an_instant() -> None:
    found = read(message({"action_ref": "a", "delay": "5m"}))
    assert isinstance(found, Request)
    assert (found.delay_seconds, found.run_at) == (300.0, None)
    again = read(message({"action_ref": "a", "delay": "10m"}))
    assert isinstance(again, Request)
    assert found.request_hash != again.request_hash
    both = message({"action_ref": "a", "delay": "5m", "run_at": "2030-01-01T00:00:00Z"})
    assert refusal_of(both) == (Code.INVALID_MESSAGE, "run_at, delay: give one of them")


def test_one_line_of_json_without_a_type_is_a_request() -> None:
    found = read(message({"action_ref": "a"}, kind="", key=REQUESTED))
    assert isinstance(found, Request)
    assert (found.parameters, found.priority, found.refusal) == (b"{}", None, None)


def test_a_cancel_names_an_execution_or_a_key() -> None:
    found = read(message({"execution_id": 3, "reason": "why"}, kind=CANCEL))
    assert found == CancelRequest(execution_id=3, idempotency_key=None, reason="why")
    code, text = refusal_of(message({}, kind=CANCEL))
    assert (code, text) == (
        Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("delivery", "code", "named"),
    [
        (message(b"{"), Code.INVALID_MESSAGE, "body: not JSON"),
        (message(b"\xff"), Code.INVALID_MESSAGE, "body: not JSON"),
        (message([]), Code.INVALID_MESSAGE, "body: a list is not an object"),
        (message({"action_ref": "a", "priorty": 1}), Code.UNKNOWN_FIELD, "did you mean priority?"),
        (message({"action_ref": "a", "priority": 9}), Code.INVALID_MESSAGE, "priority"),
        (message({"action_ref": "a", "parameters": {"n": "\0"}}), Code.INVALID_PARAMETERS, "U+0000"),
        (message({"action_ref": "a", "parameters": {"n": "x" * 2000}}), Code.TOO_LARGE, "parameters"),
        (message(b"x" * 100_000), Code.TOO_LARGE, "body: 100000 bytes"),
        (message({"action_ref": "a"}, kept=False), Code.TOO_LARGE, "message: 19 bytes"),
        (message({}, headers={"schema_version": 2}), Code.UNSUPPORTED_SCHEMA_VERSION, "'2'"),
        (message({}, kind="other", key=REQUESTED), Code.INVALID_MESSAGE, "type: 'other'"),
        (message({}, key="elsewhere"), Code.FORBIDDEN, "routing key: 'elsewhere'"),
        (message({"execution_id": 0}, kind=CANCEL), Code.INVALID_MESSAGE, "execution_id"),
    ],
)
def test_a_refusal_has_its_code_and_names_what_is_wrong(delivery: Delivery, code: Code, named: str) -> None:
    found, text = refusal_of(delivery)
    assert found is code
    assert named in text


def test_nested_json_is_refused_or_read_and_never_breaks() -> None:
    for levels in (100, 190, 250, 20_000):
        nested = b"[" * levels + b"]" * levels
        delivery = message(b'{"action_ref": "a", "parameters": {"n": %b}}' % nested)
        reader = Reader(lambda *_: None, parameters_bytes_max=100_000, probe_secret="")
        (found,) = reader.deliveries(EXECUTOR_REQUESTS, Message(delivery, None))
        assert isinstance(found.body, Request if levels <= 190 else RefusedRequest)


WHOLE: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
TEXT: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "string"}}}


def test_parameters_fit_one_of_the_schemas_or_the_request_carries_its_refusal() -> None:
    fitting = message({"action_ref": "a", "parameters": {"n": "x"}})
    for schemas in ((), (TEXT,), (WHOLE, TEXT)):
        found = read(fitting, *schemas)
        assert isinstance(found, Request)
        assert found.refusal is None
    refused = read(fitting, WHOLE)
    assert isinstance(refused, Request)
    assert refused.refusal == (
        Code.INVALID_PARAMETERS,
        "parameters.n: expected a whole number; to see what it takes: executor actions show a",
    )


def keys(*deliveries: Delivery) -> list[tuple[UUID, bool]]:
    reader = Reader(lambda *_: None, parameters_bytes_max=1000, probe_secret="")
    found = [reader.deliveries(EXECUTOR_REQUESTS, Message(each, None))[0] for each in deliveries]
    return [(each.delivery_key, each.key_identifies) for each in found]


def test_a_copy_has_the_key_of_the_first_message_whatever_the_order_of_its_fields() -> None:
    first, copy, other_id, other_body = keys(
        message({"action_ref": "a", "parameters": {"x": 1, "y": 2}}),
        message({"parameters": {"y": 2, "x": 1}, "action_ref": "a"}),
        message({"action_ref": "a", "parameters": {"x": 1, "y": 2}}, message_id="n"),
        message({"action_ref": "a", "parameters": {"x": 1}}),
    )
    assert first == copy
    assert first[1]
    assert len({first, other_id, other_body}) == 3


def test_without_a_message_id_or_with_an_idempotency_key_the_message_identifies_nothing() -> None:
    anonymous, same, named = keys(
        message({"action_ref": "a"}, message_id=""),
        message({"action_ref": "a"}, message_id=""),
        message({"action_ref": "a", "idempotency_key": "k"}),
    )
    # The same for a copy all the same: what makes every turn fail is recognised by it.
    assert anonymous == same
    assert not anonymous[1]
    assert not named[1]


def test_an_unreadable_message_has_the_same_key_each_time() -> None:
    reader = Reader(lambda *_: None, parameters_bytes_max=1000, probe_secret="")
    first, second = (reader.deliveries(EXECUTOR_REQUESTS, Message(message(b"{"), None))[0] for _ in range(2))
    assert isinstance(first.body, RefusedRequest)
    assert first.delivery_key == second.delivery_key


def test_the_properties_of_a_cancel_are_kept_for_its_dead_letter_and_bounded() -> None:
    reader = Reader(lambda *_: None, parameters_bytes_max=1000, probe_secret="")
    kept = []
    for headers in ({"traceparent": TRACE}, {str(n): "x" * 4000 for n in range(10)}):
        cancel = message({"execution_id": 9}, kind=CANCEL, headers=headers, correlation_id="c")
        (found,) = reader.deliveries(EXECUTOR_REQUESTS, Message(cancel, None))
        assert isinstance(found.body, CancelRequest)
        kept.append(json.loads(found.body.properties or ""))
    assert kept == [
        {"message_id": "m", "correlation_id": "c", "headers": {"traceparent": TRACE}},
        {"message_id": "m", "correlation_id": "c", "headers": {"x-headers-cut": 10}},
    ]
