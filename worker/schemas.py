"""Derives the JSON Schemas of an action's parameters and result from the annotations of its function.

In: a model of the parameters, a return annotation. Out: schemas for people, submitters and the executor,
which checks requests against them. A schema may allow more than the function takes, never less: what JSON
Schema cannot say, such as a validator written in Python, becomes a schema that everything fits.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python

from turnstile.common.json_schema import LISTS, MAPS, SINGLES, check_parameters_schema, check_schema

JsonSchema = dict[str, Any]
_ANYTHING: Final[JsonSchema] = {}
_COMMENTS: Final = frozenset({"title", "description", "default", "examples", "$schema", "$comment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSchemas:
    """The schemas that a worker registers for one action."""

    parameters: JsonSchema | None = None
    """None: everything is accepted, and the worker checks it before the run."""
    result: JsonSchema | None = None
    trouble: str | None = None
    """Why a schema was left out."""


def parameters_schema(
    model: type[BaseModel], names: Mapping[str, str], defaults: Mapping[str, object]
) -> JsonSchema:
    """Return the schema of a function's parameters; `names` are those of the fields of the model."""
    schema = model.model_json_schema(schema_generator=_Generator)
    schema.pop("title", None)
    properties = schema.setdefault("properties", {})
    for name in names.values():
        # The model has a neutral default in its place.
        properties[name].pop("default", None)
        if name in defaults:
            try:
                properties[name]["default"] = json.loads(json.dumps(to_jsonable_python(defaults[name])))
            except ValueError:
                continue
    return schema


def schemas_of(function: Callable[..., Any], parameters: Callable[[], JsonSchema]) -> ActionSchemas:
    """Return what can be derived; `parameters` returns the schema of the parameters."""
    troubles: list[str] = []

    def usable(what: str, schema: Callable[[], JsonSchema | None], check: Callable[[object], None]) -> Any:
        try:
            found = schema()
            if found is not None:
                check(found)
                if "\\u0000" in json.dumps(found):
                    raise ValueError("contains the character U+0000, which cannot be stored")
            return found
        except (PydanticUserError, ValueError, RecursionError) as error:
            troubles.append(f"{what}: {str(error).splitlines()[0]}")
            return None

    of_parameters = usable("parameters", parameters, check_parameters_schema)
    of_result = usable("result", lambda: _result_schema(function), check_schema)
    return ActionSchemas(parameters=of_parameters, result=of_result, trouble="; ".join(troubles) or None)


def is_same_schema(one: object, other: object) -> bool:
    """Return whether two schemas accept the same values; titles, descriptions and defaults do not count."""
    return _bare(one) == _bare(other)


def _bare(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    bare: dict[str, object] = {}
    for keyword, value in schema.items():
        if keyword in MAPS and isinstance(value, dict):
            bare[keyword] = {name: _bare(inner) for name, inner in value.items()}
        elif keyword in LISTS and isinstance(value, list):
            bare[keyword] = [_bare(inner) for inner in value]
        elif keyword in {"required", "enum"} and isinstance(value, list):
            bare[keyword] = sorted(map(repr, value))
        elif keyword not in _COMMENTS:
            bare[keyword] = _bare(value) if keyword in SINGLES else value
    return bare


def _result_schema(function: Callable[..., Any]) -> JsonSchema | None:
    try:
        annotation = get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, AttributeError, TypeError):
        return None
    if annotation is Any:
        return None
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter.json_schema(mode="serialization", schema_generator=_Generator)


class _Generator(GenerateJsonSchema):
    """Widens what a schema would say more strictly than pydantic checks it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # "Customer Id" says nothing that "customer_id" does not say.

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return self._unless_opaque(schema, super().function_before_schema)

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return self._unless_opaque(schema, super().function_wrap_schema)

    def _unless_opaque(self, schema: Any, known: Callable[[Any], JsonSchemaValue]) -> JsonSchemaValue:
        if self.mode == "validation" and schema.get("json_schema_input_schema") is None:
            return dict(_ANYTHING)
        return known(schema)

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        config = self._config
        if schema.get("strip_whitespace", config.str_strip_whitespace):
            found.pop("maxLength", None)
            found.pop("pattern", None)
        if schema.get("to_lower", config.str_to_lower) or schema.get("to_upper", config.str_to_upper):
            found.pop("pattern", None)
        if schema.get("coerce_numbers_to_str", config.coerce_numbers_to_str):
            found["type"] = ["string", "number"]
        return found

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        # Its pattern refuses numbers with an exponent, which the function takes.
        found = super().decimal_schema(schema)
        for branch in found.get("anyOf", ()):
            branch.pop("pattern", None)
        return found

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        has_own_rule = schema["cls"]._missing_.__func__ is not Enum._missing_.__func__  # type: ignore[attr-defined]
        return dict(_ANYTHING) if has_own_rule else super().enum_schema(schema)

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        # Taken as a list or as an object.
        return dict(_ANYTHING) if self.mode == "validation" else super().named_tuple_schema(schema)

    def call_schema(self, schema: core_schema.CallSchema) -> JsonSchemaValue:
        return dict(_ANYTHING)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        if self.mode == "validation" and _has_more_names(schema["cls"]):
            found.pop("required", None)
            found.pop("properties", None)
            found.pop("additionalProperties", None)
        return found


def _has_more_names(model: type[Any]) -> bool:
    """Whether a value may have other names than those in the schema."""
    config = getattr(model, "model_config", {})
    fields = getattr(model, "model_fields", {}).values()
    return any(
        not isinstance(field.validation_alias, str | None)
        or ((config.get("populate_by_name") or config.get("validate_by_name")) and field.validation_alias)
        for field in fields
    )
