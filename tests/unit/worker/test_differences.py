"""How a stored definition and the code differ: both values, and the command that settles it."""

from typing import Any

import pytest

from turnstile.common.action_definition import ActionDefinition
from turnstile.worker.registration import Difference, Values, difference, pools_of_actions


def compared(stored: dict[str, Any], code: dict[str, Any]) -> Difference | None:
    before, wanted = (ActionDefinition.model_validate({"ref": "a.b", **fields}) for fields in (stored, code))
    return difference(wanted, before, None)


@pytest.mark.parametrize(
    ("field", "stored", "code", "shown"),
    [
        ("max_concurrent", 2, None, "max_concurrent: stored 2, code none"),
        ("timeout", None, "90s", "timeout: stored none, code 1m30s"),
        ("keep_for", "1d", "2d", "keep_for: stored 1d, code 2d"),
        ("retry", {"delay": "5s"}, {"delay": "1m"}, "retry.delay: stored 5s, code 1m"),
        ("retry", {"max_attempts": 3}, {}, "retry.max_attempts: stored 3, code 1"),
        ("rate", {"starts": 5, "per": "1s"}, None, "rate: stored 5/1s, code none"),
        ("rate", {"starts": 5, "per": "1s"}, {"starts": 4, "per": "1m"}, "rate: stored 5/1s, code 4/1m"),
        ("pool", "default", "gpu", "pool: stored default, code gpu"),
        ("concurrency_key", "/x", "/y", "concurrency_key: stored /x, code /y"),
        ("paused", True, False, "paused: stored true, code false"),
        ("runs", True, False, "runs: stored true, code false"),
    ],
)
def test_a_difference_names_the_field_as_in_a_file_with_both_values(
    field: str, stored: object, code: object, shown: str
) -> None:
    found = compared({field: stored}, {field: code})
    assert found is not None
    assert str(found) == shown
    assert found.fields == (shown.partition(":")[0],)


def test_every_field_that_differs_is_named_once() -> None:
    keys = {"concurrency_key": "/x", "max_concurrent_total": 3}
    found = compared({**keys, "order": "fair", "pool": "gpu"}, keys)
    assert found is not None
    assert str(found) == "order: stored fair, code arrival; pool: stored gpu, code default"
    assert compared(keys, keys) is None


@pytest.mark.parametrize(
    ("stored", "code", "command"),
    [
        ({"max_concurrent": 2}, {"max_concurrent": 5}, "executor actions limit a.b 5"),
        ({"max_concurrent": 2}, {}, "executor actions limit a.b none"),
        ({"paused": True}, {}, "executor actions resume a.b"),
        ({}, {"paused": True}, "executor actions pause a.b"),
        (
            {"max_concurrent": 2, "ttl": "1m"},
            {"max_concurrent": 5},
            "worker actions --actions shop.work --ref a.b --json | executor actions apply -",
        ),
    ],
)
def test_a_difference_has_the_command_that_applies_the_code(
    stored: dict[str, Any], code: dict[str, Any], command: str
) -> None:
    found = compared(stored, code)
    assert found is not None
    assert found.remedy("shop.work") == command


def test_the_pools_of_actions_are_those_of_the_database() -> None:
    code = [ActionDefinition(ref="a", pool="gpu"), ActionDefinition(ref="b"), ActionDefinition(ref="c")]
    moved = Difference(ref="b", values={"pool": Values(stored="big", code="default")})
    other = Difference(ref="c", values={"ttl": Values(stored="none", code="1m")})
    assert pools_of_actions(code, [moved, other]) == ["big", "default", "gpu"]
    assert pools_of_actions([], []) == []
