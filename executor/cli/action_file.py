"""The file `actions.yaml`: its reader and its JSON Schema.

In: a file with a list of actions, or with `actions:`, `resources:`, `pools:` and `schedules:`. Out:
definitions, or all errors of the file at once, each with file, entry and field; then nothing is applied.
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from turnstile.common.action_definition import ActionDefinition, has_keys
from turnstile.common.cli import bad_input
from turnstile.common.fields import Key
from turnstile.common.invalid_values import explained
from turnstile.common.schedules import ScheduleDefinition
from turnstile.executor.cli.arguments import opened
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition, problems_of_uses

_EXAMPLE: Final = "- {ref: reports.render, max_concurrent: 3}"


_Model = TypeVar("_Model", bound=BaseModel)
Definition: TypeAlias = ActionDefinition | ResourceDefinition | PoolDefinition | ScheduleDefinition
_NOUNS: Final[Mapping[type[Definition], str]] = {
    ResourceDefinition: "resource",
    PoolDefinition: "pool",
    ScheduleDefinition: "schedule",
}
_SECTIONS: Final = ("actions", "resources", "pools", "schedules")


def _key_of(written: object) -> object:
    # YAML reads an unquoted 7 as a number; the key of a request is text.
    return str(written) if isinstance(written, int) and not isinstance(written, bool) else written


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


class ActionEntry(ActionDefinition):
    """An action in a file."""

    keys: dict[Annotated[Key, BeforeValidator(_key_of)], KeySettings] | None = Field(
        default=None,
        description="Limits and weights of single concurrency keys. Those of other keys are deleted with "
        "--prune, and stay without it. null: unchanged.",
    )

    @model_validator(mode="after")
    def _keys_are_possible(self) -> Self:
        if self.keys and not has_keys(self):
            raise ValueError(
                "keys: the action has no concurrency keys; set concurrency_key, or set max_concurrent instead"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionFile:
    """The definitions in a file."""

    actions: Sequence[ActionEntry]
    resources: Sequence[ResourceDefinition] | None
    """None: the file says nothing about resources."""
    pools: Sequence[PoolDefinition] | None = None
    """None: the file says nothing about pools."""
    schedules: Sequence[ScheduleDefinition] | None = None
    """None: the file says nothing about schedules."""


def name_of(definition: Definition) -> str:
    """Return the name of a definition."""
    return definition.ref if isinstance(definition, ActionDefinition) else definition.name


def noun_of(model: type[Definition]) -> str:
    """Return what a definition is called: action, resource, pool or schedule."""
    return "action" if issubclass(model, ActionDefinition) else _NOUNS[model]


def read_action_file(path: str) -> DefinitionFile:
    """Return the definitions in a file, or on stdin for '-'; raises CommandFailed with all errors."""
    name = "stdin" if path == "-" else path
    with opened(path, hint=f"; expected a YAML file like: {_EXAMPLE}") as file:
        content = _read_content(name, file.read())
    problems: list[str] = []

    def defined(section: str, what: str, model: type[_Model], naming: str) -> list[_Model] | None:
        entries = content[section]
        return None if entries is None else [*_defined(f"{name}: {what}", entries, model, naming, problems)]

    found = DefinitionFile(
        actions=defined("actions", "entry", ActionEntry, "ref") or [],
        resources=defined("resources", "resource", ResourceDefinition, "name"),
        pools=defined("pools", "pool", PoolDefinition, "name"),
        schedules=defined("schedules", "schedule", ScheduleDefinition, "name"),
    )
    if problems:
        raise bad_input("\n".join(problems))
    return found


def _defined(
    where_by_number: str, entries: list[Any], model: type[_Model], naming: str, problems: list[str]
) -> Iterator[_Model]:
    seen: set[str] = set()
    for number, entry in enumerate(entries, start=1):
        name = entry.get(naming) if isinstance(entry, dict) else None
        where = f"{where_by_number} {number}" + (f" ({name})" if isinstance(name, str) else "")
        try:
            definition = model.model_validate(entry)
        except ValidationError as error:
            problems.append(f"{where}: {explained(error, whole='definition', model=model)}")
            continue
        if name in seen:
            problems.append(f"{where}: {naming}: defined twice; keep one definition")
        seen.add(str(name))
        yield definition


def check_uses(
    wanted: DefinitionFile,
    actions: Mapping[str, ActionDefinition],
    resources: Mapping[str, ResourceDefinition],
) -> None:
    """Raise CommandFailed for uses that the API would refuse, before anything is applied.

    Uses that are stored already are accepted, as by the API.
    """
    known = {**resources, **{resource.name: resource for resource in wanted.resources or ()}}
    problems = [
        f"{entry.ref}: {problem}"
        for entry in wanted.actions
        if (stored := actions.get(entry.ref)) is None or stored.uses != entry.uses
        for problem in problems_of_uses(entry, known)
    ]
    if problems:
        raise bad_input("\n".join(problems))


def _read_content(name: str, content: bytes) -> dict[str, Any]:
    try:
        value = yaml.load(content, Loader=_Loader)  # noqa: S506  (a safe loader that rejects duplicates)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise bad_input(f"{name}: {location}{error.problem}; expected YAML like: {_EXAMPLE}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_input(f"{name}: invalid YAML: {error}; expected YAML like: {_EXAMPLE}") from None
    except (TypeError, LookupError, AttributeError):
        # PyYAML raises these for a tag with an invalid value.
        raise bad_input(
            f"{name}: invalid value for a tag, like '!!bool maybe'; expected YAML like: {_EXAMPLE}"
        ) from None
    if isinstance(value, list):
        value = {"actions": value}
    if not (
        isinstance(value, dict)
        and value
        and value.keys() <= {*_SECTIONS}
        and all(isinstance(part, list) for part in value.values())
    ):
        raise bad_input(
            f"{name}: expected a list of actions, or 'actions:', 'resources:', 'pools:' and 'schedules:' "
            f"with a list each, like: {_EXAMPLE}"
        )
    return {**dict.fromkeys(_SECTIONS), "actions": [], **value}


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
_HAS_KEYS: Final = {
    "anyOf": [
        {"properties": {"concurrency_key": {"type": "string"}}, "required": ["concurrency_key"]},
        {"properties": {"submitter_keys": {"const": True}}, "required": ["submitter_keys"]},
    ]
}
_KEYS_WHERE_NEEDED: Final = [
    {"if": {"properties": {name: {"type": kind, "minProperties": 1}}, "required": [name]}, "then": _HAS_KEYS}
    for name, kind in (("max_concurrent_total", "integer"), ("keys", "object"))
]
_TOTAL_WHERE_FAIR: Final = {
    "if": {"properties": {"order": {"const": "fair"}}, "required": ["order"]},
    "then": {
        "properties": {"max_concurrent_total": {"type": "integer"}},
        "required": ["max_concurrent_total"],
    },
}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


def action_file_schema() -> dict[str, Any]:
    """Return the schema of a file of definitions."""
    _, whole = models_json_schema(
        [(each, "validation") for each in (ActionEntry, *_NOUNS)],
        schema_generator=_Generator,
    )
    definitions = whole["$defs"]
    action = definitions.pop("ActionEntry")
    action["title"] = "ActionDefinition"
    action["allOf"] = [*_ENTRYPOINT_BY_RUNNER, *_KEYS_WHERE_NEEDED, _TOTAL_WHERE_FAIR]
    definitions["KeySettings"]["minProperties"] = 1
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "actions.yaml",
        "description": "Actions of Turnstile: a list of definitions, or `actions:`, `resources:`, `pools:` "
        "and `schedules:` with such lists.",
        "anyOf": [
            {"$ref": "#/$defs/Actions"},
            {
                "type": "object",
                "properties": {
                    "resources": {"type": "array", "items": {"$ref": "#/$defs/ResourceDefinition"}},
                    "pools": {"type": "array", "items": {"$ref": "#/$defs/PoolDefinition"}},
                    "actions": {"$ref": "#/$defs/Actions"},
                    "schedules": {"type": "array", "items": {"$ref": "#/$defs/ScheduleDefinition"}},
                },
                "minProperties": 1,
                "additionalProperties": False,
            },
        ],
        "$defs": {
            "Actions": {"type": "array", "items": {"$ref": "#/$defs/ActionDefinition"}},
            "ActionDefinition": action,
            **definitions,
        },
    }


def schema_text() -> str:
    """Return the schema as text; docs/actions.schema.json is a copy."""
    return json.dumps(action_file_schema(), indent=2, ensure_ascii=False) + "\n"
