"""The file `actions.yaml`: its reader, its JSON Schema, and the plan of what applying it changes.

In: a file with a list of definitions, or `actions:` with such a list. Out: definitions, or all errors of the
file at once, each with file, entry and field; then nothing is applied.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.durations import parse_duration
from turnstile.common.fields import check_ref
from turnstile.common.requests import known_fields
from turnstile.executor.cli.arguments import bad_input, piped_in

_EXAMPLE: Final = "- {ref: reports.render, max_concurrent: 3}"


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys; YAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_action_file(path: str) -> list[ActionDefinition]:
    """Return the definitions in a file, or on stdin for '-'; raises CommandFailed with all errors."""
    name = "stdin" if path == "-" else path
    found: dict[str, ActionDefinition] = {}
    problems: list[str] = []
    for number, entry in enumerate(_entries(name, _content(path)), start=1):
        ref = entry.get("ref") if isinstance(entry, dict) else None
        where = f"{name}: entry {number}" + (f" ({ref})" if isinstance(ref, str) else "")
        try:
            definition = ActionDefinition.model_validate(entry)
        except ValidationError as error:
            problems += (f"{where}: {sentence}" for sentence in _sentences(error))
            continue
        if found.setdefault(definition.ref, definition) is not definition:
            problems.append(f"{where}: ref: defined twice; keep one definition")
    if problems:
        raise bad_input("\n".join(problems))
    return list(found.values())


def _content(path: str) -> bytes:
    try:
        return piped_in().read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror}; expected a YAML file like: {_EXAMPLE}") from None


def _entries(name: str, content: bytes) -> list[Any]:
    try:
        value = yaml.load(content, Loader=_Loader)  # noqa: S506  (a safe loader that rejects duplicates)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise bad_input(f"{name}: {place}{error.problem}; expected YAML like: {_EXAMPLE}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_input(f"{name}: invalid YAML: {error}; expected YAML like: {_EXAMPLE}") from None
    except (TypeError, LookupError, AttributeError):
        # PyYAML raises these for a tag with an invalid value.
        raise bad_input(
            f"{name}: invalid value for a tag, like '!!bool maybe'; expected YAML like: {_EXAMPLE}"
        ) from None
    if isinstance(value, dict) and value.keys() == {"actions"}:
        value = value["actions"]
    if not isinstance(value, list):
        raise bad_input(f"{name}: expected a list of actions, or 'actions:' with one, like: {_EXAMPLE}")
    return value


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for problem in error.errors(include_url=False, include_input=False):
        field = ".".join(map(str, problem["loc"])) or "definition"
        if problem["type"] == "extra_forbidden":
            known = known_fields(ActionDefinition, problem["loc"])
            sentences.append(f"{field}: unknown field; known fields are {known}")
        else:
            sentences.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What applying a file does with one action."""

    definition: ActionDefinition
    kind: Literal["create", "change", "keep", "delete"]
    changes: Mapping[str, tuple[Any, Any]]
    """Old and new value by field; for a new action the difference from the defaults."""


def plan(
    wanted: Sequence[ActionDefinition], stored: Mapping[str, ActionDefinition], *, prune: bool = False
) -> list[Step]:
    """Return a step for each wanted action, in order, and with `prune` a deletion for every other action."""
    steps = [_step(definition, stored.get(definition.ref)) for definition in wanted]
    if prune:
        named = {definition.ref for definition in wanted}
        steps += [
            Step(definition=stored[ref], kind="delete", changes={}) for ref in sorted(stored.keys() - named)
        ]
    return steps


def _step(wanted: ActionDefinition, stored: ActionDefinition | None) -> Step:
    if stored is None:
        changes = _differences(ActionDefinition.model_construct(ref=wanted.ref), wanted)
        return Step(definition=wanted, kind="create", changes=changes)
    changes = _differences(stored, wanted)
    return Step(definition=wanted, kind="change" if changes else "keep", changes=changes)


def _differences(old: ActionDefinition, new: ActionDefinition) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(old), _flat(new)
    return {field: (before[field], after[field]) for field in after if before[field] != after[field]}


def _flat(definition: ActionDefinition) -> dict[str, Any]:
    fields = definition.model_dump(mode="json")
    retry = fields.pop("retry")
    return {**fields, **{f"retry.{name}": value for name, value in retry.items()}}


_DURATION: Final = r"\s*(\d+(\.\d+)?\s*([mM]?[sS]|[mMhHdD])\s*)+|\s*\d+(\.\d+)?\s*"
_PARSER_SCHEMAS: Final[Mapping[Callable[..., Any], JsonSchemaValue]] = {
    parse_duration: {
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^({_DURATION})$"}],
        "examples": ["250ms", "30s", "5m", "1h30m", 90],
    },
    check_ref: {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}$",
        "examples": ["reports.render"],
    },
}
"""Schemas of parser functions: pydantic cannot derive them from code."""
_ENTRYPOINT_BY_RUNNER: Final = [
    {
        "if": {"properties": {"runner": {"const": "command"}}, "required": ["runner"]},
        "then": {"properties": {"entrypoint": {"type": "array", "minItems": 1}}, "required": ["entrypoint"]},
    },
    {
        "if": {"properties": {"runner": {"const": "http"}}, "required": ["runner"]},
        "then": {
            "properties": {"entrypoint": {"type": "string", "pattern": "^https?://"}},
            "required": ["entrypoint"],
        },
    },
    {
        "if": {"properties": {"runner": {"const": "python"}}},
        "then": {"properties": {"entrypoint": {"type": ["string", "null"]}}},
    },
]


class _Generator(GenerateJsonSchema):
    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return _parser_schema(schema) or super().function_before_schema(schema)

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        return _parser_schema(schema) or super().function_after_schema(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


def _parser_schema(schema: Any) -> JsonSchemaValue | None:
    # A copy, because the generator adds the field's description to it.
    return deepcopy(_PARSER_SCHEMAS.get(schema["function"]["function"]))


def action_file_schema() -> dict[str, Any]:
    """Return the schema of a file of actions."""
    definition = ActionDefinition.model_json_schema(schema_generator=_Generator)
    others = definition.pop("$defs", {})
    definition["allOf"] = _ENTRYPOINT_BY_RUNNER
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "actions.yaml",
        "description": "Actions of Turnstile: a list of definitions, or `actions:` with such a list.",
        "anyOf": [
            {"$ref": "#/$defs/Actions"},
            {
                "type": "object",
                "properties": {"actions": {"$ref": "#/$defs/Actions"}},
                "required": ["actions"],
                "additionalProperties": False,
            },
        ],
        "$defs": {
            "Actions": {"type": "array", "items": {"$ref": "#/$defs/ActionDefinition"}},
            "ActionDefinition": definition,
            **others,
        },
    }


def schema_text() -> str:
    """Return the schema as text; docs/actions.schema.json is a copy."""
    return json.dumps(action_file_schema(), indent=2, ensure_ascii=False) + "\n"
