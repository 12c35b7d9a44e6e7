"""Messages: any input is a request or a refusal; our own messages are lenient; envelopes are complete."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Refusal
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import message_id
from turnstile.common.messages import (
    CancelRequested,
    ExecutionCompleted,
    ExecutionRequested,
)
from turnstile.common.requests import (
    CheckedRequest,
    delivery_key,
    read_json,
    read_model,
    read_request,
    read_requested_body,
    request_hash,
)
from turnstile.executor.leader.ports import StatusChanged
from turnstile.executor.leader.status_events import status_message

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


DOCUMENTS = st.dictionaries(st.text(max_size=3), ANYTHING, max_size=2)
KEYS = st.none() | st.text(max_size=3)
PLAIN = st.fixed_dictionaries(
    {"action_ref": st.just("noop")},
    optional={
        "parameters": DOCUMENTS,
        "metadata": DOCUMENTS,
        "idempotency_key": KEYS,
        "concurrency_key": KEYS,
        "priority": st.integers(0, 6),
        "timeout": st.floats() | st.integers() | st.sampled_from(["5m", "", None]),
        "ttl": st.floats() | st.sampled_from(["1h30m", "1", None]),
    },
)


@given(st.binary())
def test_any_bytes_are_a_request_or_a_refusal(body: bytes) -> None:
    with suppress(Refusal):
        read_requested_body(body)


@given(FIELDS)
@settings(max_examples=40)
def test_any_value_of_any_field_is_a_request_or_a_refusal(value: dict[str, object]) -> None:
    with suppress(Refusal):
        read_requested_body(json.dumps(value).encode())


def _outcome(read: Callable[[], CheckedRequest]) -> CheckedRequest | tuple[str, str]:
    try:
        return read()
    except Refusal as refusal:
        return refusal.code, refusal.message


@given(PLAIN)
@settings(max_examples=60)
def test_what_is_read_at_once_and_what_is_read_with_all_checks_is_the_same(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    at_once = _outcome(lambda: read_requested_body(body, parameters_bytes_max=60))
    assert at_once == _outcome(
        lambda: read_request(read_json(body, bytes_max=1 << 20), parameters_bytes_max=60)
    )


def test_a_size_is_counted_in_bytes() -> None:
    body = json.dumps({"action_ref": "a", "parameters": {"x": "\u00fc" * 50}}).encode()
    with pytest.raises(Refusal, match="parameters: 108 bytes, at most 100 are accepted"):
        read_requested_body(body, parameters_bytes_max=100)


@pytest.mark.parametrize("model", [CancelRequested, ExecutionCompleted])
@given(value=ANYTHING | st.dictionaries(st.sampled_from(["execution_id", "attempt", "reason"]), ANYTHING))
def test_any_json_is_a_message_or_a_refusal(
    model: type[CancelRequested] | type[ExecutionCompleted], value: object
) -> None:
    with suppress(Refusal):
        read_model(model, read_json(json.dumps(value).encode(), bytes_max=10_000))


def test_an_unknown_field_is_refused_with_the_known_fields_beside_it() -> None:
    with pytest.raises(
        Refusal,
        match=r"retry\.attempts: no such field; did you mean max_attempts\?; known are max_attempts, ",
    ):
        read_model(ActionDefinition, {"ref": "a", "retry": {"attempts": 3}})


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    one = read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1, "b": {"c": 2, "d": 3}}}')
    two = read_requested_body(b'{"parameters": {"b": {"d": 3, "c": 2}, "a": 1}, "action_ref": "noop"}')
    assert request_hash(one) == request_hash(two)


def test_only_what_is_executed_changes_the_hash() -> None:
    usual = read_requested_body(b'{"action_ref": "a", "parameters": {"b": 1}, "idempotency_key": "k"}')
    spelled = read_requested_body(b'{"action_ref": "a", "parameters": {"b": 1}, "timeout": null}')
    other = read_requested_body(b'{"action_ref": "a", "parameters": {"b": 1}, "timeout": 5}')
    assert request_hash(usual) == request_hash(spelled) != request_hash(other)


def test_another_value_or_message_id_is_another_delivery() -> None:
    one = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 1}}'))
    two = request_hash(read_requested_body(b'{"action_ref": "noop", "parameters": {"a": 2}}'))
    keys = {delivery_key("m1", one), delivery_key("m2", one), delivery_key("m1", two)}
    assert len(keys) == 3


def test_the_hash_of_a_request_never_changes() -> None:
    body = (
        b'{"metadata": {"z": [{"b": 1, "a": [2.5, null]}], "m": {}}, "action_ref": "reports.render", '
        b'"idempotency_key": "k", "ttl": "1h", '
        b'"parameters": {"b": {"d": 3, "c": "\xc3\xbc"}, "a": [true, 1e16, [[]]]}}'
    )
    assert str(request_hash(read_requested_body(body))) == "23b12ac9-8ea2-a6e2-b133-b77ee15b0464"


NO_PRIORITIES = [0, 6, -1, 2.5, 10**400, "high", "2", "", True, False, None, [2], {}]


@pytest.mark.parametrize("priority", NO_PRIORITIES, ids=lambda value: repr(value)[:20])
def test_an_invalid_priority_is_refused_with_range_and_remedy(priority: object) -> None:
    with pytest.raises(Refusal) as refused:
        read_requested_body(json.dumps({"action_ref": "noop", "priority": priority}).encode())
    assert refused.value.code == "invalid_message"
    assert refused.value.message == (
        "priority: expected a whole number from 1 (first) to 5 (last), or leave it out"
    )


def test_a_priority_may_be_written_as_a_decimal_fraction() -> None:
    # To JSON Schema 2.0 is an integer; some languages write all numbers like that.
    written = read_requested_body(b'{"action_ref": "a", "priority": 2.0}').priority
    assert (type(written), written) == (int, 2)


def test_another_priority_is_another_request_and_3_is_the_same_as_none() -> None:
    hashes = [
        request_hash(read_requested_body(b'{"action_ref": "a", "ttl": %b%b}' % (ttl, priority)))
        for ttl in (b"null", b"60")
        for priority in (b"", b', "priority": 3', b', "priority": 1', b', "priority": 5')
    ]
    for absent, usual, first, last in (hashes[:4], hashes[4:]):
        assert absent == usual
        assert len({usual, first, last}) == 3
    assert len(set(hashes)) == 6


def test_an_unknown_field_of_a_cancel_is_refused() -> None:
    with pytest.raises(ValidationError, match="reson"):
        CancelRequested.model_validate({"execution_id": 1, "reson": "late"})


@pytest.mark.parametrize("fields", [{"concurrency_key": "x" * 513}, {"metadata": None}], ids=str)
def test_an_invalid_field_of_a_request_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ExecutionRequested.model_validate({"action_ref": "a", **fields})


class _StatusChanged(BaseModel):
    """The body of `execution.status_changed`."""

    execution_id: int
    action_ref: str
    status: Status
    previous_status: Status | None
    attempt: int
    changed_at: datetime


ANY_ID = st.integers(1, 2**63 - 1)
ANY_INSTANT = st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1))  # noqa: DTZ001
ANY_TEXT = st.text(st.characters(codec="utf-8"))
ANY_STATUS = st.sampled_from(Status)


@given(ANY_ID, ANY_TEXT, ANY_STATUS, st.none() | ANY_STATUS, ANY_INSTANT)
def test_the_body_of_a_status_event_is_that_of_its_model(
    execution_id: int, ref: str, status: Status, previous: Status | None, at: datetime
) -> None:
    changed = StatusChanged(execution_id, ref, status, previous, 7, at)
    model = _StatusChanged.model_validate(changed._asdict())
    body = status_message(changed, mandatory=False).body
    assert body.decode() == model.model_dump_json()


def test_message_ids_are_uuids_and_those_of_a_child_process_are_others() -> None:
    ours = [message_id() for _ in range(1000)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, message_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    childs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    ids = {*ours, childs, message_id()}
    assert len(ids) == 1002
    assert {UUID(each).version for each in ids} == {4}
    assert {UUID(each).variant for each in ids} == {RFC_4122}
    assert {str(UUID(each)) for each in ids} == ids


@pytest.mark.parametrize("body", ["1e400", "-1E+999", '{"a": 1e999}', '["\\u0000"]', "1" * 310 + ".5"])
def test_a_value_that_cannot_be_stored_is_refused(body: str) -> None:
    with pytest.raises(Refusal):
        read_json(body.encode(), bytes_max=10_000)
