"""Whatever strangers send is a request or a refusal, and never anything else."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Refusal
from turnstile.common.messages import CancelRequested, ExecutionCompleted, ExecutionRequested
from turnstile.common.requests import delivery_key, read_json, read_model, read_requested_body, request_hash

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


def test_an_unknown_field_is_answered_with_those_of_its_own_place() -> None:
    with pytest.raises(Refusal, match=r"retry\.attempts: no such field; known are max_attempts, delay, "):
        read_model(ActionDefinition, {"ref": "a", "retry": {"attempts": 3}})


@pytest.mark.parametrize("timeout", [[1], {}, True, 10**400, -1, "soon", "", "1h30"])
def test_a_wrong_duration_is_refused_by_its_field(timeout: object) -> None:
    with pytest.raises(Refusal, match="timeout"):
        read_requested_body(json.dumps({"action_ref": "noop", "timeout": timeout}).encode())


def test_the_order_of_keys_does_not_make_another_request() -> None:
    one = read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1, "b": {"c": 2, "d": 3}}}')
    two = read_requested_body(b'{"parameters": {"b": {"d": 3, "c": 2}, "a": 1}, "action_ref": "noop"}')
    assert request_hash(one) == request_hash(two)


def test_another_value_or_another_message_is_another_delivery() -> None:
    one = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1}}'))
    two = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 2}}'))
    keys = {delivery_key("m1", one), delivery_key("m2", one), delivery_key("m1", two)}
    assert len(keys) == 3


def test_a_hash_stays_what_it_was_in_versions_whose_executions_are_on_record() -> None:
    body = (
        b'{"metadata": {"z": [{"b": 1, "a": [2.5, null]}], "m": {}}, "action_ref": "reports.render", '
        b'"idempotency_key": "k", "ttl": "1h", '
        b'"parameters": {"b": {"d": 3, "c": "\xc3\xbc"}, "a": [true, 1e16, [[]]]}}'
    )
    assert str(request_hash(read_requested_body(body))) == "23b12ac9-8ea2-a6e2-b133-b77ee15b0464"
