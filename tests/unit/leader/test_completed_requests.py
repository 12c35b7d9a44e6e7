"""What the definition of an action says about a request: its queue's key, its priority, its webhook."""

import json
from typing import Any
from uuid import UUID

import pytest

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.leader.admission import completed
from turnstile.executor.leader.ports import Request


def _request(parameters: str = "{}", **fields: Any) -> Request:
    return Request(action_ref="a", parameters=parameters.encode(), request_hash=UUID(int=1), **fields)


def _key(parameters: str, pointer: str = "/c") -> str:
    return completed(_request(parameters), {"concurrency_key": pointer}).key


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"text"', "text"),
        ("7", "7"),
        ("1.50", "1.50"),
        ("1e2", "100"),
        ("-0.0", "0.0"),
        ("true", "true"),
        ('[1, "a", null]', '[1, "a", null]'),
        ('{"bb": 1, "a": {"ä": false}}', '{"a": {"ä": false}, "bb": 1}'),
    ],
)
def test_a_key_is_the_text_of_the_value_at_the_pointer_as_postgresql_writes_it(value: str, key: str) -> None:
    assert _key(f'{{"c": {value}}}') == key


def test_a_pointer_goes_through_objects_and_lists() -> None:
    assert _key('{"a/b": [{"~": 1}, {"~": 2}]}', "/a~1b/-1/~0") == "2"


@pytest.mark.parametrize("parameters", ["{}", '{"c": null}', '{"c": 5}', '{"c": []}'])
def test_without_a_value_at_the_pointer_a_request_is_refused(parameters: str) -> None:
    with pytest.raises(Refusal, match="parameters: no value at concurrency key /c/0") as refused:
        _key(parameters, "/c/0")
    assert refused.value.code is Code.INVALID_PARAMETERS


def test_a_submitter_names_a_key_only_where_the_action_allows_it() -> None:
    given = _request('{"c": "x"}', concurrency_key="mine")
    assert completed(given, {"submitter_keys": True}).key == "mine"
    assert completed(given, {"submitter_keys": True, "concurrency_key": "/c"}).key == "mine"
    with pytest.raises(Refusal, match="concurrency_key: the action has no keys"):
        completed(given, {})
    with pytest.raises(Refusal, match="concurrency_key: is not the value at /c in the parameters"):
        completed(given, {"concurrency_key": "/c"})
    assert completed(_request('{"c": "x"}', concurrency_key="x"), {"concurrency_key": "/c"}).key == "x"


def test_a_key_has_at_most_512_characters() -> None:
    assert _key(json.dumps({"c": "x" * 512})) == "x" * 512
    with pytest.raises(Refusal, match="longer than 512 characters"):
        _key(json.dumps({"c": "x" * 513}))


def test_a_priority_is_bounded_by_the_action_except_for_operators_and_retries() -> None:
    assert completed(_request(), {}).priority == 3
    assert completed(_request(), {"priority_min": 5}).priority == 5
    assert completed(_request(priority=1), {"priority_min": 1}).priority == 1
    with pytest.raises(Refusal, match="priority: 3 is below the priority_min of the action, 4"):
        completed(_request(priority=3), {"priority_min": 4})
    assert completed(_request(priority=1, may_be_urgent=True), {"priority_min": 4}).priority == 1
    assert completed(_request(priority=1, retry_of=7), {"priority_min": 4}).priority == 1


def test_a_retry_keeps_its_key_whatever_the_action_says_now() -> None:
    assert completed(_request(key="k", priority=3, retry_of=7), {"concurrency_key": "/c"}).key == "k"
    assert completed(_request(key="", priority=3, retry_of=7), {"concurrency_key": "/c"}).key == ""


def test_an_edited_retry_is_keyed_by_its_own_parameters_and_bound_by_the_priority_of_its_action() -> None:
    edited = _request('{"c": "new"}', key="old", priority=1, retry_of=7, edited=["c"])
    assert completed(edited, {"concurrency_key": "/c"}).key == "new"
    assert completed(edited, {"submitter_keys": True}).key == "old"
    assert completed(edited, {}).key == "old"
    with pytest.raises(Refusal, match="priority: 1 is below the priority_min of the action, 4"):
        completed(edited, {"priority_min": 4})


def test_the_webhook_of_the_request_counts_before_that_of_the_action() -> None:
    assert completed(_request(), {"callback_url": "http://x"}).callback_url == "http://x"
    assert (
        completed(_request(callback_url="http://y"), {"callback_url": "http://x"}).callback_url == "http://y"
    )
