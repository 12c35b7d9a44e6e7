"""`executor actions schema`: the JSON Schema of `actions.yaml`, for editors and for checks before a commit.

Made from the very model that reads the file; `docs/actions.schema.json` is a copy for those who have no
executor at hand.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

import typer
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from turnstile.common.action_definition import ActionDefinition, check_ref
from turnstile.common.domain.durations import parse_duration

_WHOLE: Final = r"\s*(\d+(\.\d+)?\s*([mM]?[sS]|[mMhHdD])\s*)+|\s*\d+(\.\d+)?\s*"
_SAID_BY: Final[Mapping[Callable[..., Any], JsonSchemaValue]] = {
    parse_duration: {
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^({_WHOLE})$"}],
        "examples": ["250ms", "30s", "5m", "1h30m", 90],
    },
    check_ref: {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}$",
        "examples": ["reports.render"],
    },
}
"""What the readers of single values take; their code cannot be looked into."""
_ENTRYPOINT_FITS_RUNNER: Final = [
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
        return _said_by(schema) or super().function_before_schema(schema)

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        return _said_by(schema) or super().function_after_schema(schema)

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


def _said_by(schema: Any) -> JsonSchemaValue | None:
    # A copy: the generator adds to it what is said about the field.
    return deepcopy(_SAID_BY.get(schema["function"]["function"]))


def action_file_schema() -> dict[str, Any]:
    """Return the schema of a file of actions."""
    definition = ActionDefinition.model_json_schema(schema_generator=_Generator)
    others = definition.pop("$defs", {})
    definition["allOf"] = _ENTRYPOINT_FITS_RUNNER
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
    """Return the schema as it stands in its file."""
    return json.dumps(action_file_schema(), indent=2, ensure_ascii=False) + "\n"


def print_schema() -> None:
    """Print the JSON Schema of actions.yaml.

    Example: executor actions schema > actions.schema.json
    """
    typer.echo(schema_text(), nl=False)
