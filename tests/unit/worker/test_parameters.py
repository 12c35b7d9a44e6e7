"""Parameters are validated against a function's annotations and passed by keyword."""

import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.unit.worker.conftest import MakeModule
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.actions import load_actions
from turnstile.worker.context import Context, Invocation
from turnstile.worker.parameters import InvalidParameters, ParametersReader

CONTEXT = Context(
    Invocation(
        execution_id=ExecutionId(1),
        attempt=Attempt(1),
        action_ref="tried",
        entrypoint=None,
        parameters_json="{}",
        traceparent=None,
        timeout_seconds=None,
    ),
    write_line=lambda _: None,
    pass_on=lambda *_: None,
    stop_reason=lambda: None,
    report_progress=lambda _: None,
)


def called(function: Callable[..., Any], parameters: object) -> Any:
    """Return what the function returns when it is called with these parameters."""
    return function(**ParametersReader(function).read(json.dumps(parameters), lambda: CONTEXT))


def refused(function: Callable[..., Any], parameters: object) -> str:
    with pytest.raises(InvalidParameters) as refusal:
        called(function, parameters)
    return str(refusal.value)


def test_parameters_are_passed_by_keyword_and_as_their_types() -> None:
    class Customer(BaseModel):
        id: int

    def function(customer: Customer, at: datetime, *, kind: Literal["a", "b"] = "a") -> object:
        return customer.id, at, kind

    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert called(function, {"at": at.isoformat(), "customer": {"id": "7"}}) == (7, at, "a")
    assert "customer.id" in refused(function, {"at": at.isoformat(), "customer": {"id": "x"}})
    assert "kind: expected 'a' or 'b'" in refused(
        function, {"at": at.isoformat(), "customer": {"id": 1}, "kind": "c"}
    )


def test_a_parameter_that_is_not_sent_has_the_functions_own_default() -> None:
    marker = object()

    def function(a: int | None = None, b: Any = marker) -> object:
        return a, b is marker

    assert called(function, {}) == (None, True)
    assert called(function, {"a": None, "b": None}) == (None, False)


def test_unknown_parameters_are_refused_unless_the_function_takes_any() -> None:
    def strict() -> None: ...

    def open_ended(a: int, **others: Any) -> object:
        return a, others

    assert refused(strict, {"a": 1}) == "a: unknown parameter; known: none"
    assert called(open_ended, {"a": 1, "b": [2]}) == (1, {"b": [2]})


def test_parameters_must_be_a_json_object() -> None:
    def function() -> None: ...

    wrong: list[object] = [[], "a", 1, None]
    for parameters in wrong:
        assert refused(function, parameters).startswith("parameters: ")


@pytest.mark.parametrize("name", ["json", "copy", "model_config", "_private", "class_", "schema"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def function({name}: int): return {name}", namespace)
    assert called(namespace["function"], {name: 3}) == 3


def test_the_context_is_accepted_at_any_position_and_is_not_a_parameter() -> None:
    def first(context: Context, a: int) -> object:
        return context, a

    def last(a: int, my_context: Context) -> object:
        return my_context, a

    def keyword(a: int, *, c: Context | None = None) -> object:
        return c, a

    for function in (first, last, keyword):
        assert called(function, {"a": 1}) == (CONTEXT, 1)
    assert refused(first, {"a": 1, "context": 2}) == "context: unknown parameter; known: a"


@pytest.mark.parametrize(
    "annotation", ["'Context'", "'Context | None'", "worker.Context", "Optional['Context']"]
)
def test_a_postponed_annotation_is_the_context_too(make_module: MakeModule, annotation: str) -> None:
    module = make_module(
        "from __future__ import annotations\nfrom turnstile import worker\nfrom typing import Optional\n"
        "from turnstile.worker import Context, action\n"
        f"@action('a')\ndef a(x: int, c: {annotation}): return c\n"
    )
    (found,) = load_actions(module)
    assert found.function is not None
    assert called(found.function, {"x": 1}) is CONTEXT


def test_a_parameter_named_context_is_not_the_context() -> None:
    def function(context: str) -> str:
        return context

    assert called(function, {"context": "x"}) == "x"


def test_a_wrapped_function_keeps_its_signature() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @logged
    def function(a: int, context: Context) -> object:
        return a, context

    assert called(function, {"a": "1"}) == (1, CONTEXT)
    assert refused(function, {"b": 1}) == "a: required, but missing; b: unknown parameter; known: a"
