"""A request as it is admitted: what was given, what is left to the action, and who submits it."""

import json
from typing import Any

import pytest

from turnstile.common.requests import read_request, read_requested_body, request_hash
from turnstile.executor.results import Admission


def admission_of(may_be_urgent: bool = False, **fields: Any) -> Admission:
    body = json.dumps({"action_ref": "a", "parameters": {"x": 1}, **fields}).encode()
    request = read_requested_body(body)
    assert read_request(json.loads(body)) == request
    return Admission.of(request, request_hash(request), may_be_urgent=may_be_urgent)


@pytest.mark.parametrize("priority", range(1, 6))
def test_a_priority_that_was_given_is_admitted(priority: int) -> None:
    assert admission_of(priority=priority).priority == priority


def test_a_priority_that_was_not_given_is_left_to_the_action() -> None:
    assert admission_of().priority is None
    # The default of the request, so that the same key names the same execution.
    assert admission_of().request_hash == admission_of(priority=3).request_hash


def test_a_request_may_not_be_urgent_by_default() -> None:
    assert not admission_of(priority=1).may_be_urgent
    assert admission_of(may_be_urgent=True, priority=1).may_be_urgent
