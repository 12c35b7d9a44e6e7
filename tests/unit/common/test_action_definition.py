"""The fields of an action definition, and the checks of each field type."""

from typing import Any

import pytest
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.fields import pointer_path


def error_of(**fields: Any) -> str:
    with pytest.raises(ValidationError) as error:
        ActionDefinition.model_validate({"ref": "a", **fields})
    (problem,) = error.value.errors(include_input=False)
    return f"{'.'.join(str(step) for step in problem['loc'])}: {problem['msg']}"


@pytest.mark.parametrize("ref", ["a", "reports.render", "A-b_c.9", "_x", "9", "a" * 200])
def test_a_ref_has_letters_digits_and_few_other_characters(ref: str) -> None:
    assert ActionDefinition(ref=ref).ref == ref


@pytest.mark.parametrize("ref", ["", " ", "a b", ".a", "-a", "a/b", "ü", "a\n", "a\0", "a#", "a*", "a" * 201])
def test_any_other_ref_is_refused_with_an_example(ref: str) -> None:
    assert error_of(ref=ref).startswith("ref: ")
    assert "like 'reports.render'" in error_of(ref=ref)


@pytest.mark.parametrize(
    ("pointer", "steps"),
    [
        ("/customer/id", ["customer", "id"]),
        ("/a~1b/m~0n", ["a/b", "m~n"]),
        ("/~01", ["~1"]),
        ("/", [""]),
        ("/a//b", ["a", "", "b"]),
    ],
)
def test_a_concurrency_key_is_a_json_pointer(pointer: str, steps: list[str]) -> None:
    assert ActionDefinition(ref="a", concurrency_key=pointer).concurrency_key == pointer
    assert pointer_path(pointer) == steps


@pytest.mark.parametrize("pointer", ["", "customer", "$.customer", "/a~", "/a~2"])
def test_an_invalid_json_pointer_is_refused_with_an_example(pointer: str) -> None:
    assert "like '/customer/id'" in error_of(concurrency_key=pointer)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org", "http://example.org:8080/a?b=c#d", "HTTPS://EXAMPLE.ORG/", "http://[::1]:80/",
        "https://münchen.example/", "http://10.0.0.1/",
    ],
)  # fmt: skip
def test_a_callback_url_with_a_host_is_stored_unchanged(url: str) -> None:
    assert ActionDefinition(ref="a", callback_url=url).callback_url == url


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "http:///path", "http://[::1",
        "http://a:b/", "http://a:70000/", "http://a:0/", "http://a b/", "http://a\n/", "http://a/\t", "https://\0/",
        "http://user@example.org/", "http://user:sesame@example.org/", "http://example.org/" + "a" * 2048,
    ],
)  # fmt: skip
def test_any_other_callback_url_is_refused_without_repeating_a_password(url: str) -> None:
    assert "sesame" not in error_of(callback_url=url)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        *(({"pool": pool}, "pool") for pool in ("", "a.b", "a b", "*", "#", "a" * 65, "retry")),
        *(({"max_concurrent": limit}, "max_concurrent") for limit in (-1, 1_000_001, 1.5)),
        ({"max_reclaims": -1}, "max_reclaims"),
        ({"max_queued": -1}, "max_queued"),
        ({"runner": "shell"}, "runner"),
        ({"on_worker_lost": "ignore"}, "on_worker_lost"),
        ({"runs": "never"}, "runs"),
        ({"when_full": "drop"}, "when_full"),
        ({"max_concurent": 1}, "max_concurent"),
        *(
            ({"max_concurrent_total": total, "submitter_keys": True}, "max_concurrent_total")
            for total in (-1, 1_000_001)
        ),
        ({"order": "random"}, "order"),
        ({"rate": {"starts": 0, "per": "1s"}}, "rate.starts"),
        ({"rate": {"starts": 100_001, "per": "1s"}}, "rate.starts"),
        *(({"rate": {"starts": 1, "per": per}}, "rate.per") for per in (0, 0.0001, "25h", "soon")),
        ({"rate": {"starts": 1}}, "rate.per"),
        *(({"uses": [use]}, "uses.0.resource") for use in ("", "a b", "a" * 65, ".a")),
        *(({"uses": [{"resource": "a", "units": units}]}, "uses.0.units") for units in (0, 1_000_001)),
        *(({"uses": [{"resource": "a", "weight": weight}]}, "uses.0.weight") for weight in (0, 17)),
        ({"uses": ["a", {"resource": "a"}]}, "uses"),
        ({"uses": [f"r{number}" for number in range(21)]}, "uses"),
        *(({"priority_min": number}, "priority_min") for number in (0, 6)),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"factor": 0.5}}, "retry.factor"),
        ({"retry": {"jitter": 1.1}}, "retry.jitter"),
        ({"retry": {"delay": -1}}, "retry.delay"),
        ({"retry": {"times": 1}}, "retry.times"),
    ],
    ids=str,
)
def test_an_invalid_field_is_refused_by_its_name(fields: dict[str, object], name: str) -> None:
    assert error_of(**fields).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("retry", "max_delay_seconds"),
    [({}, 300.0), ({"delay": "1h"}, 3600.0), ({"delay": "1h", "max_delay": "5m"}, 300.0)],
)
def test_the_first_wait_is_cut_only_by_a_given_max_delay(
    retry: dict[str, object], max_delay_seconds: float
) -> None:
    definition = ActionDefinition.model_validate({"ref": "a", "retry": retry})
    assert definition.retry.max_delay == max_delay_seconds


def test_uses_are_names_or_objects_and_are_kept_in_the_order_of_names() -> None:
    definition = ActionDefinition.model_validate(
        {"ref": "a", "uses": ["b", {"resource": "a", "units": 2, "weight": 3}]}
    )
    assert [(use.resource, use.units, use.weight) for use in definition.uses] == [("a", 2, 3), ("b", 1, 1)]


def test_a_total_needs_concurrency_keys_and_fairness_a_total() -> None:
    assert "set concurrency_key, or set max_concurrent instead" in error_of(max_concurrent_total=3)
    assert "set max_concurrent_total, or omit order" in error_of(order="fair")
    for keys in ({"concurrency_key": "/who"}, {"submitter_keys": True}):
        fields = {"ref": "a", "max_concurrent_total": 3, "order": "fair", **keys}
        assert ActionDefinition.model_validate(fields).order == "fair"
