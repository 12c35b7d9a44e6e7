"""Which policies of a broker would let it drop messages of ours."""

from typing import Any

from turnstile.executor.permissions.policies import dropping_policies


def policy(name: str, pattern: str, priority: int = 0, **definition: Any) -> dict[str, Any]:
    bounds = {key.replace("_", "-"): value for key, value in definition.items()}
    return {
        "name": name, "pattern": pattern, "priority": priority, "apply-to": "queues", "definition": bounds,
    }  # fmt: skip


def test_a_policy_that_bounds_a_queue_of_ours_is_named_with_the_command_that_removes_it() -> None:
    bounded = policy("short", "^executor\\.", max_length=10, overflow="drop-head")
    assert list(dropping_policies("v", [bounded], [])) == [
        "policy 'short' lets the broker drop messages of executor.requests, executor.completions,"
        " executor.heartbeats, executor.reports (max-length): rabbitmqctl clear_policy -p v short"
    ]
    (said,) = dropping_policies("v", [], [policy("all", "", message_ttl=5, expires=7)])
    assert said.startswith("operator policy 'all' lets the broker drop messages of executor.requests,")
    assert "worker.<id>.1, client.<id>.answers (expires, message-ttl)" in said
    assert said.endswith("rabbitmqctl clear_operator_policy -p v all")


def test_policies_of_other_queues_other_kinds_or_without_effect_are_fine() -> None:
    exchanges = policy("exchanges", "", max_length=1) | {"apply-to": "exchanges"}
    others = [
        policy("listeners", "^reports\\.", max_length=10),
        policy("replicas", "^executor\\.", delivery_limit=100),
        policy("perl", "^(?<a>executor)(?&a)", max_length=1),
        exchanges,
    ]
    assert not list(dropping_policies("v", others, others))
    shadowed = [policy("low", "^executor", max_length=1), policy("high", "^executor", 1, delivery_limit=9)]
    assert not list(dropping_policies("v", shadowed, []))
