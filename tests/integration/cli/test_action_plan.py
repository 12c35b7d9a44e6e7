"""Applying a file changes what differs, and nothing else."""

from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.cli.action_plan import plan


def test_an_action_that_is_not_stored_is_created_with_what_differs_from_the_defaults() -> None:
    (step,) = plan([ActionDefinition(ref="a", max_concurrent=3)], {})
    assert (step.kind, dict(step.changes)) == ("create", {"max_concurrent": (None, 3)})


def test_an_action_that_is_stored_alike_is_kept() -> None:
    (step,) = plan(
        [ActionDefinition.model_validate({"ref": "a", "timeout": "5m"})],
        {"a": ActionDefinition(ref="a", timeout=300.0)},
    )
    assert (step.kind, dict(step.changes)) == ("keep", {})


def test_a_field_that_is_left_out_goes_back_to_its_default() -> None:
    (step,) = plan(
        [ActionDefinition(ref="a")], {"a": ActionDefinition(ref="a", max_concurrent=3, paused=True)}
    )
    assert (step.kind, dict(step.changes)) == (
        "change",
        {"max_concurrent": (3, None), "paused": (True, False)},
    )


def test_a_retry_is_compared_field_by_field() -> None:
    wanted = ActionDefinition.model_validate({"ref": "a", "retry": {"max_attempts": 4}})
    (step,) = plan([wanted], {"a": ActionDefinition(ref="a")})
    assert dict(step.changes) == {"retry.max_attempts": (1, 4)}


def test_actions_that_are_not_wanted_are_left_alone_and_the_order_is_that_of_the_file() -> None:
    wanted = [ActionDefinition(ref="b"), ActionDefinition(ref="a")]
    stored = {"z": ActionDefinition(ref="z"), "a": ActionDefinition(ref="a")}
    assert [(step.definition.ref, step.kind) for step in plan(wanted, stored)] == [
        ("b", "create"),
        ("a", "keep"),
    ]
