"""Messages: any input is a request or a refusal; our own messages are lenient; envelopes are complete."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstile.common.broker.message import Outgoing
from turnstile.common.domain.errors import Refusal
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import completed_message
from turnstile.common.messages import (
    CancelRequested,
    ExecutionCompleted,
    ExecutionRequested,
    ExecutionScheduled,
)
from turnstile.common.requests import delivery_key, read_json, read_model, read_requested_body, request_hash

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FIELDS = st.fixed_dictionaries(
    {"action_ref": st.just("noop") | ANYTHING},
    optional={name: ANYTHING for name in ExecutionRequested.model_fields if name != "action_ref"},
)


@given(st.binary())
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    with suppress(Refusal):
        read_requested_body(body)


@given(FIELDS)
def test_any_value_of_any_field_is_a_request_or_a_refusal(value: dict[str, object]) -> None:
    with suppress(Refusal):
        read_requested_body(json.dumps(value).encode())


@pytest.mark.parametrize("model", [CancelRequested, ExecutionCompleted])
@given(value=ANYTHING | st.dictionaries(st.sampled_from(["execution_id", "attempt", "reason"]), ANYTHING))
def test_any_json_is_a_message_or_a_refusal(
    model: type[CancelRequested] | type[ExecutionCompleted], value: object
) -> None:
    with suppress(Refusal):
        read_model(model, read_json(json.dumps(value).encode(), bytes_max=10_000))


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    one = read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1, "b": {"c": 2, "d": 3}}}')
    two = read_requested_body(b'{"parameters": {"b": {"d": 3, "c": 2}, "a": 1}, "action_ref": "noop"}')
    assert request_hash(one) == request_hash(two)


def test_another_value_or_message_id_is_another_delivery() -> None:
    one = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1}}'))
    two = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 2}}'))
    keys = {delivery_key("m1", one), delivery_key("m2", one), delivery_key("m1", two)}
    assert len(keys) == 3


def test_the_hash_is_the_same_as_in_released_versions() -> None:
    body = (
        b'{"metadata": {"z": [{"b": 1, "a": [2.5, null]}], "m": {}}, "action_ref": "reports.render", '
        b'"idempotency_key": "k", "ttl": "1h", '
        b'"parameters": {"b": {"d": 3, "c": "\xc3\xbc"}, "a": [true, 1e16, [[]]]}}'
    )
    assert str(request_hash(read_requested_body(body))) == "23b12ac9-8ea2-a6e2-b133-b77ee15b0464"


def test_an_unknown_field_from_a_newer_version_is_ignored() -> None:
    body = {"execution_id": 1, "attempt": 2, "action_ref": "a", "priority": 9}
    assert ExecutionScheduled.model_validate(body) == ExecutionScheduled(
        execution_id=1, attempt=2, action_ref="a"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"idempotency_key": ""}, {"concurrency_key": "x" * 513}, {"run_at": "2030-01-01T00:00:00"},
        {"callback_url": "ftp://there"}, {"parameters": []},
        {"metadata": None}, {"action_ref": "no spaces"},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_field_of_a_request_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ExecutionRequested.model_validate({"action_ref": "a", **fields})


def assert_enveloped(
    message: Outgoing, message_type: str, routing_key: str, *, exchange: str = "executions"
) -> None:
    assert (message.type, message.exchange, message.routing_key) == (message_type, exchange, routing_key)
    assert UUID(message.message_id).version == 4
    assert message.headers is not None
    assert message.headers["schema_version"] == 1
    assert message.persistent


@pytest.mark.parametrize("app_id", ["worker", "executor"])
def test_a_completion_carries_the_whole_outcome(app_id: str) -> None:
    end = ExecutionCompleted(
        execution_id=1, action_id=2, action_ref="a", status=Status.COMPLETED, result={"words": 7},
        attempt=3, completed_at=NOW,
    )  # fmt: skip
    message = completed_message(end, app_id="worker" if app_id == "worker" else "executor")
    assert_enveloped(message, "execution.completed", "execution.completed")
    assert (message.app_id, message.correlation_id) == (app_id, "1")
    assert ExecutionCompleted.model_validate_json(message.body) == end
