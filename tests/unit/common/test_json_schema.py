"""Schemas from outside: what is accepted, what is refused and why, and that none can stop an executor."""

import re
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from turnstile.common.json_schema import SCHEMA_BYTES_MAX, check_parameters_schema, compile_schema

DOUBLING = {
    "$ref": "#/$defs/a0",
    "$defs": {
        **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(25)},
        "a25": {"type": "integer"},
    },
}
TWICE_INTO_ITSELF = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"anyOf": [{"properties": {"x": {"$ref": "#/$defs/a"}}}] * 2}},
}
HOSTILE: list[tuple[str, Any]] = [
    ("$ref: only '#' and", {"$ref": "http://127.0.0.1/schema.json"}),
    ("$ref: only '#' and", {"$ref": "file:///etc/passwd"}),
    ("$ref: only '#' and", {"$ref": 5}),
    ("there is no '#/$defs/a'", {"$ref": "#/$defs/a"}),
    ("$id: is not supported", {"$id": "http://127.0.0.1/"}),
    ("$dynamicRef: is not supported", {"properties": {"a": {"$dynamicRef": "#x"}}}),
    ("$schema: expected https://json-schema.org/draft", {"$schema": "http://json-schema.org/draft-07/schema#"}),
    ("properties.a.pattern: is not a pattern that can be", {"properties": {"a": {"pattern": "(?!x)"}}}),
    ("pattern: is not a pattern that can be matched in linear", {"pattern": r"(a)\1"}),
    ("pattern: is not a pattern that can be matched in linear", {"pattern": "(a{1000}){1000}"}),
    ("properties.a.type: expected string, integer,", {"properties": {"a": {"type": "intger"}}}),
    ("properties.a: expected a schema", {"properties": {"a": 5}}),
    ("required: is not valid", {"required": "a"}),
    (f"at most {SCHEMA_BYTES_MAX} are accepted", {"description": "x" * SCHEMA_BYTES_MAX}),
    ("may be looked at more than 200 times", DOUBLING),
    ("refers to itself in more than one way", TWICE_INTO_ITSELF),
    ("refers to itself for the same value", {"allOf": [{"$ref": "#"}]}),
    ("type: parameters are an object", {"type": "array"}),
    ("expected a JSON Schema", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "schema"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_schema_that_cannot_be_used_is_refused_with_its_path(reason: str, schema: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_parameters_schema(schema)


def test_nesting_is_bounded() -> None:
    schema: dict[str, Any] = {}
    for _ in range(65):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        check_parameters_schema(schema)


class Tree(BaseModel):
    left: "Tree | None" = None
    right: "Tree | None" = None
    children: list["Tree"] = []
    named: dict[str, "Tree"] = {}
    anything: JsonValue = None


def test_recursive_models_are_accepted_and_deep_bodies_are_checked() -> None:
    schema = Tree.model_json_schema()
    check_parameters_schema(schema)
    body: dict[str, Any] = {}
    for _ in range(190):
        body = {"left": body}
    assert compile_schema(schema).is_valid(body)


def test_a_pattern_takes_linear_time() -> None:
    schema = {"pattern": "^(a+)+$"}
    check_parameters_schema(schema)
    assert not compile_schema(schema).is_valid("a" * 100_000 + "b")
