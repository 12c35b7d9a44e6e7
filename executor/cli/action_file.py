"""The file `actions.yaml`: its reader, its JSON Schema, and the plan of what applying it changes.

In: a file with a list of actions, or with `actions:`, `resources:` and `pools:`. Out: definitions, or all
errors of the file at once, each with file, entry and field; then nothing is applied.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from turnstile.common.action_definition import ActionDefinition, has_keys
from turnstile.common.domain.durations import parse_duration
from turnstile.common.fields import Key, check_pool, check_ref, check_resource, parse_period
from turnstile.common.invalid_values import explained
from turnstile.executor.cli.arguments import bad_input, piped_in
from turnstile.executor.definitions import (
    KeySettings,
    PoolDefinition,
    ResourceDefinition,
    key_fields,
    problems_of_uses,
)

_EXAMPLE: Final = "- {ref: reports.render, max_concurrent: 3}"


_Model = TypeVar("_Model", bound=BaseModel)
_Named = TypeVar("_Named", ResourceDefinition, PoolDefinition)
Definition: TypeAlias = ActionDefinition | ResourceDefinition | PoolDefinition


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


def read_action_file(path: str) -> DefinitionFile:
    """Return the definitions in a file, or on stdin for '-'; raises CommandFailed with all errors."""
    name = "stdin" if path == "-" else path
    content = _read_content(name, _content(path))
    problems: list[str] = []
    actions = list(_defined(f"{name}: entry", content["actions"], ActionEntry, "ref", problems))
    listed = content["resources"]
    resources = (
        None
        if listed is None
        else list(_defined(f"{name}: resource", listed, ResourceDefinition, "name", problems))
    )
    listed = content["pools"]
    pools = (
        None if listed is None else list(_defined(f"{name}: pool", listed, PoolDefinition, "name", problems))
    )
    if problems:
        raise bad_input("\n".join(problems))
    return DefinitionFile(actions=actions, resources=resources, pools=pools)


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


def _content(path: str) -> bytes:
    try:
        return piped_in().read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror}; expected a YAML file like: {_EXAMPLE}") from None


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
        and value.keys() <= {"actions", "resources", "pools"}
        and all(isinstance(part, list) for part in value.values())
    ):
        raise bad_input(
            f"{name}: expected a list of actions, or 'actions:', 'resources:' and 'pools:' with a list each, "
            f"like: {_EXAMPLE}"
        )
    return {"actions": [], "resources": None, "pools": None, **value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What applying a file does with one action, resource or pool."""

    definition: Definition
    kind: Literal["create", "change", "keep", "delete"]
    changes: Mapping[str, tuple[Any, Any]]
    """Old and new value by field; for a new one the difference from the defaults."""
    keys: Mapping[str, KeySettings | None] = field(default_factory=dict)
    """Concurrency keys that change; None: their settings are deleted."""
    kept_keys: Sequence[str] = ()
    """Concurrency keys whose settings stay, although the file omits them."""

    @property
    def name(self) -> str:
        """The name of the action, resource or pool."""
        return self.definition.ref if isinstance(self.definition, ActionDefinition) else self.definition.name

    @property
    def subject(self) -> str:
        """What changes, for people."""
        match self.definition:
            case ActionDefinition():
                return self.name
            case ResourceDefinition():
                return f"resource {self.name}"
            case PoolDefinition():
                return f"pool {self.name}"

    @property
    def deleted_subjects(self) -> Sequence[str]:
        """What is deleted, for people: the action or resource, or settings of its keys."""
        if self.kind == "delete":
            return (self.subject,)
        return [f"keys.{key} of {self.subject}" for key, settings in self.keys.items() if settings is None]

    @property
    def changes_definition(self) -> bool:
        """Whether more than the settings of keys changes."""
        return len(self.changes) > len(self.keys)


def plan(
    wanted: Sequence[ActionDefinition],
    stored: Mapping[str, ActionDefinition],
    *,
    keys: Mapping[str, Mapping[str, KeySettings]] | None = None,
    prune: bool = False,
) -> list[Step]:
    """Return a step for each wanted action, in order, and with `prune` a deletion for every other action.

    `keys` are the stored settings of keys, by action; those that an action omits are deleted with `prune`.
    """
    steps = [
        _step(definition, stored.get(definition.ref), (keys or {}).get(definition.ref, {}), prune=prune)
        for definition in wanted
    ]
    return steps + _deletions(steps, stored) if prune else steps


def plan_resources(
    wanted: Sequence[ResourceDefinition] | None,
    stored: Mapping[str, ResourceDefinition],
    *,
    prune: bool = False,
) -> list[Step]:
    """Return a step for each wanted resource, and with `prune` a deletion for every other one.

    None: the file says nothing about resources, so all are kept.
    """
    if wanted is None:
        return []
    steps = [_named_step(definition, stored) for definition in wanted]
    return steps + _deletions(steps, stored) if prune else steps


def plan_pools(
    wanted: Sequence[PoolDefinition] | None,
    stored: Mapping[str, PoolDefinition],
    *,
    prune: bool = False,
) -> list[Step]:
    """Return a step for each wanted pool; with `prune` every other one gets the default settings.

    None: the file says nothing about pools, so all keep their settings.
    """
    if wanted is None:
        return []
    named = {definition.name for definition in wanted}
    others = [PoolDefinition(name=name) for name in sorted(stored.keys() - named)] if prune else []
    steps = [_named_step(definition, stored) for definition in (*wanted, *others)]
    return [step for step in steps if step.changes or step.name in named]


def _named_step(definition: _Named, stored: Mapping[str, _Named]) -> Step:
    found = stored.get(definition.name)
    changes = _differences(found or type(definition)(name=definition.name), definition)
    return Step(definition=definition, kind=_kind(found, changes), changes=changes)


def _deletions(steps: Sequence[Step], stored: Mapping[str, Definition]) -> list[Step]:
    """Return the deletion of each stored definition that has no step."""
    left = stored.keys() - {step.name for step in steps}
    return [Step(definition=stored[name], kind="delete", changes={}) for name in sorted(left)]


def _step(
    wanted: ActionDefinition,
    stored: ActionDefinition | None,
    stored_keys: Mapping[str, KeySettings],
    *,
    prune: bool,
) -> Step:
    settings = wanted.keys if isinstance(wanted, ActionEntry) else None
    omitted = [] if settings is None else sorted(stored_keys.keys() - settings.keys())
    names = [*(settings or ()), *(omitted if prune else ())]
    keys, key_changes = _changed_keys(settings or {}, stored_keys, names)
    before = ActionDefinition.model_construct(ref=wanted.ref) if stored is None else stored
    changes = {**_differences(before, wanted), **key_changes}
    kept = () if prune else omitted
    return Step(definition=wanted, kind=_kind(stored, changes), changes=changes, keys=keys, kept_keys=kept)


def _kind(stored: Definition | None, changes: Mapping[str, object]) -> Literal["create", "change", "keep"]:
    if stored is None:
        return "create"
    return "change" if changes else "keep"


def _changed_keys(
    settings: Mapping[str, KeySettings], stored: Mapping[str, KeySettings], names: Sequence[str]
) -> tuple[dict[str, KeySettings | None], dict[str, tuple[Any, Any]]]:
    keys: dict[str, KeySettings | None] = {}
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(names):
        old, new = stored.get(key), settings.get(key)
        before, after = (None if each is None else key_fields(each) for each in (old, new))
        if before != after:
            keys[key] = new
            changes[f"keys.{key}"] = (before, after)
    return keys, changes


def _differences(old: Definition, new: Definition) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(old), _flat(new)
    return {field: (before[field], after[field]) for field in after if before[field] != after[field]}


def _flat(definition: Definition) -> dict[str, Any]:
    fields = definition.model_dump(mode="json", exclude={"keys"})
    retry = fields.pop("retry", {})
    return {**fields, **{f"retry.{name}": value for name, value in retry.items()}}


_DURATION: Final = r"\s*(\d+(\.\d+)?\s*([mM]?[sS]|[mMhHdD])\s*)+|\s*\d+(\.\d+)?\s*"
_PARSER_SCHEMAS: Final[Mapping[Callable[..., Any], JsonSchemaValue]] = {
    parse_duration: {
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^({_DURATION})$"}],
        "examples": ["250ms", "30s", "5m", "1h30m", 90],
    },
    parse_period: {
        "anyOf": [
            {"type": "number", "minimum": 0.001, "maximum": 86400},
            {"type": "string", "pattern": f"^({_DURATION})$"},
        ],
        "examples": ["1s", "1m"],
    },
    check_resource: {
        "type": "string",
        "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}$",
        "examples": ["autocad"],
    },
    check_pool: {"type": "string", "pattern": r"^[A-Za-z0-9_\-]{1,64}$", "examples": ["default", "gpu"]},
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
_HAS_KEYS: Final = {
    "anyOf": [
        {"properties": {"concurrency_key": {"type": "string"}}, "required": ["concurrency_key"]},
        {"properties": {"submitter_keys": {"const": True}}, "required": ["submitter_keys"]},
    ]
}
_KEYS_WHERE_NEEDED: Final = [
    {
        "if": {"properties": {name: {"type": kind, "minProperties": 1}}, "required": [name]},
        "then": _HAS_KEYS,
    }
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
    """Return the schema of a file of actions, resources and pools."""
    definition = ActionEntry.model_json_schema(schema_generator=_Generator)
    others = definition.pop("$defs", {})
    definition["title"] = "ActionDefinition"
    definition["allOf"] = [*_ENTRYPOINT_BY_RUNNER, *_KEYS_WHERE_NEEDED, _TOTAL_WHERE_FAIR]
    resource = ResourceDefinition.model_json_schema(schema_generator=_Generator)
    others |= resource.pop("$defs", {})
    pool = PoolDefinition.model_json_schema(schema_generator=_Generator)
    others["KeySettings"]["minProperties"] = 1
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "actions.yaml",
        "description": "Actions of Turnstile: a list of definitions, or `actions:`, `resources:` and "
        "`pools:` with such lists.",
        "anyOf": [
            {"$ref": "#/$defs/Actions"},
            {
                "type": "object",
                "properties": {
                    "resources": {"type": "array", "items": {"$ref": "#/$defs/ResourceDefinition"}},
                    "pools": {"type": "array", "items": {"$ref": "#/$defs/PoolDefinition"}},
                    "actions": {"$ref": "#/$defs/Actions"},
                },
                "minProperties": 1,
                "additionalProperties": False,
            },
        ],
        "$defs": {
            "Actions": {"type": "array", "items": {"$ref": "#/$defs/ActionDefinition"}},
            "ActionDefinition": definition,
            "ResourceDefinition": resource,
            "PoolDefinition": pool,
            **others,
        },
    }


def schema_text() -> str:
    """Return the schema as text; docs/actions.schema.json is a copy."""
    return json.dumps(action_file_schema(), indent=2, ensure_ascii=False) + "\n"
