"""What can be said about an action."""

from typing import Any

import pytest
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition, pointer_path


def refused(**fields: Any) -> str:
    with pytest.raises(ValidationError) as error:
        ActionDefinition.model_validate({"ref": "a", **fields})
    (problem,) = error.value.errors()
    return f"{'.'.join(str(step) for step in problem['loc'])}: {problem['msg']}"


def test_a_name_is_enough() -> None:
    definition = ActionDefinition(ref="reports.render")
    assert (definition.runner, definition.pool, definition.max_concurrent) == ("python", "default", None)
    assert (definition.timeout, definition.ttl, definition.retry.max_attempts) == (None, None, 1)
    assert (definition.on_worker_lost, definition.when_full, definition.paused) == (
        "requeue",
        "enqueue",
        False,
    )


@pytest.mark.parametrize("ref", ["a", "reports.render", "A-b_c.9", "_x", "9", "a" * 200])
def test_a_ref_is_letters_digits_and_a_few_marks(ref: str) -> None:
    assert ActionDefinition(ref=ref).ref == ref


@pytest.mark.parametrize("ref", ["", " ", "a b", ".a", "-a", "a/b", "ü", "a\n", "a\0", "a#", "a*", "a" * 201])
def test_any_other_ref_is_refused_with_an_example(ref: str) -> None:
    message = refused(ref=ref)
    assert message.startswith("ref: ")
    assert "like 'reports.render'" in message


@pytest.mark.parametrize("pool", ["", "a.b", "a b", "*", "#", "a" * 65])
def test_a_pool_fits_into_a_routing_key(pool: str) -> None:
    assert "cannot name a pool" in refused(pool=pool)


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
    definition = ActionDefinition(ref="a", concurrency_key=pointer)
    assert definition.concurrency_key == pointer
    assert pointer_path(pointer) == steps


@pytest.mark.parametrize("pointer", ["", "customer", "$.customer", "/a~", "/a~2"])
def test_what_is_no_json_pointer_is_refused_with_an_example(pointer: str) -> None:
    assert "like '/customer/id'" in refused(concurrency_key=pointer)


def test_durations_are_read_as_people_write_them() -> None:
    definition = ActionDefinition.model_validate(
        {"ref": "a", "timeout": "1h30m", "ttl": 60, "retry": {"delay": "250ms", "max_delay": "5m"}}
    )
    assert (definition.timeout, definition.ttl) == (5400.0, 60.0)
    assert (definition.retry.delay, definition.retry.max_delay) == (0.25, 300.0)
    assert "not a duration: 'soon'" in refused(timeout="soon")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_concurrent", -1),
        ("max_concurrent", 1_000_001),
        ("max_concurrent", 1.5),
        ("max_reclaims", -1),
        ("max_queued", -1),
        ("runner", "shell"),
        ("on_worker_lost", "ignore"),
        ("when_full", "drop"),
        ("max_concurent", 1),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(field: str, value: object) -> None:
    assert refused(**{field: value}).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value"), [("max_attempts", 0), ("factor", 0.5), ("jitter", 1.1), ("delay", -1), ("times", 1)]
)
def test_a_wrong_retry_is_refused_by_its_name(field: str, value: object) -> None:
    assert refused(retry={field: value}).startswith(f"retry.{field}: ")


def test_no_limit_and_a_limit_of_nothing_are_two_things() -> None:
    assert ActionDefinition(ref="a", max_concurrent=None).max_concurrent is None
    assert ActionDefinition(ref="a", max_concurrent=0).max_concurrent == 0


@pytest.mark.parametrize(
    ("runner", "entrypoint"),
    [
        ("command", None),
        ("command", "wc -w"),
        ("command", []),
        ("http", None),
        ("http", "example.org"),
        ("http", ["https://example.org"]),
        ("python", ["a", "b"]),
    ],
)
def test_an_entrypoint_that_does_not_fit_the_runner_is_refused(runner: str, entrypoint: object) -> None:
    assert "entrypoint: " in refused(runner=runner, entrypoint=entrypoint)


@pytest.mark.parametrize(
    ("runner", "entrypoint"),
    [
        ("command", ["wc", "-w"]),
        ("http", "https://example.org/hook"),
        ("python", None),
        ("python", "reports:render"),
    ],
)
def test_an_entrypoint_that_fits_is_kept(runner: str, entrypoint: object) -> None:
    definition = ActionDefinition.model_validate({"ref": "a", "runner": runner, "entrypoint": entrypoint})
    assert definition.entrypoint == entrypoint
