"""Checks parameters against one JSON Schema, and says in plain words what does not fit. Pure.

In: a schema, given in a definition or derived by a worker from its code; parameters. Out: whether they fit,
or each wrong field and what was expected. A worker converts some values that its schema does not allow, such
as "17" to a whole number. The executor accepts these too: the worker's own check has the last word.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import islice
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from turnstile.common.invalid_values import sentence
from turnstile.common.json_schema import LISTS, MAPS, SINGLES, Schema, Validator, compile_schema, visits
from turnstile.common.nearest import did_you_mean

REASONS_MAX: Final = 5
"""Number of wrong fields that one refusal names at most."""
_SENTENCE_CHARS_MAX: Final = 300
_LISTED_MAX: Final = 20
_COMPARED_MAX: Final = 500
_REFERENCES_MAX: Final = 10
_LISTED_COST_MAX: Final = 20_000
"""Bytes of a value, times the visits of the schema to each part: beyond, not all errors are listed."""

_TEXT_FORMATS: Final = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
}
_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_FORMATS: Final = {
    "date-time": "a time like 2030-01-31T09:00:00Z",
    "date": "a date like 2030-01-31",
    "time": "a time of day like 09:00:00",
    "duration": "a duration like PT1H30M",
    "uuid": "a UUID like 0f8fad5b-d9cb-469f-a165-70867728950e",
}
_BOUNDS: Final = {
    "minimum": ("greater_than_equal", "ge"),
    "exclusiveMinimum": ("greater_than", "gt"),
    "maximum": ("less_than_equal", "le"),
    "exclusiveMaximum": ("less_than", "lt"),
    "minLength": ("string_too_short", "min_length"),
    "maxLength": ("string_too_long", "max_length"),
    "minItems": ("too_short", "min_length"),
    "maxItems": ("too_long", "max_length"),
    "pattern": ("string_pattern_mismatch", "pattern"),
}
_OF_KIND: Final = frozenset({"type", "const", "enum", "pattern", "format"})
"""Keywords about the value itself, as opposed to what is inside it."""

_INTEGER_TEXT: Final = r"^\s*[+-]?[0-9][0-9_]*(\.0*)?\s*$"
_NUMBER_TEXT: Final = (
    r"^\s*[+-]?([0-9_]*\.?[0-9_]*([eE][+-]?[0-9_]+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?|[nN][aA][nN])\s*$"
)
_BOOLEAN_TEXT: Final = r"^\s*(?i:0|1|on|off|t|f|true|false|y|n|yes|no)\s*$"
_CONVERTED: Final[Mapping[str, tuple[tuple[str, ...], str | None]]] = {
    "integer": (("integer", "string", "boolean"), _INTEGER_TEXT),
    "number": (("number", "string", "boolean"), _NUMBER_TEXT),
    "boolean": (("boolean", "string", "number"), _BOOLEAN_TEXT),
}
"""What pydantic converts to these types, and the pattern of the text among it."""
_COMMENTS: Final = frozenset({"title", "description", "default", "examples", "discriminator", "deprecated"})
_UNSURE: Final = frozenset({"uniqueItems", "multipleOf", "not", "if", "then", "else", "$schema"})
"""Keywords that a worker does not check, or less strictly: a set drops what it has already."""


_Path = tuple[int | str, ...]


class SchemaChecker:
    """One compiled schema."""

    __slots__ = ("_is_converted", "_schema", "_validator")

    def __init__(self, schema: Schema, *, is_converted: bool) -> None:
        """`is_converted`: a worker derived it, and converts values. Raises ValueError if it is unusable."""
        self._schema = schema
        self._is_converted = is_converted
        known = _converted(schema) if is_converted else _with_known_formats(schema)
        self._validator: Validator = compile_schema(known, _format_checks())

    def fits(self, parameters: object) -> bool:
        """Return whether parameters fit; what cannot be checked fits."""
        try:
            return self._validator.is_valid(parameters)
        except ValueError:
            return True

    def reasons(self, parameters: object) -> list[str]:
        """Return a sentence for each wrong field, with its path; empty if the parameters fit."""
        sentences = dict.fromkeys(islice(self._reasons(parameters, ()), REASONS_MAX))
        return list(sentences)

    def _reasons(self, value: object, at: _Path) -> Iterator[str]:
        if self.fits(value):
            return
        if len(to_json(value)) * visits(self._schema) <= _LISTED_COST_MAX:
            for error in self._validator.iter_errors(value):
                yield from self._sentences(error, at)
            return
        # The validator lists all errors at once, and in all branches: too many of a large value. So the first
        # wrong part is looked for, and looked at alone.
        node = self._target(self._schema)
        if isinstance(value, dict):
            for name in node.get("required", ()):
                if name not in value:
                    yield _said([*at, name], sentence("missing"))
            known = node.get("properties", {})
            if node.get("additionalProperties") is False:
                unknown = [name for name in value if name not in known]
                yield from _unknown(unknown[:REASONS_MAX], sorted(known), at)
        for step, part, checker in self._parts(node, value):
            if not checker.fits(part):
                yield from checker._reasons(part, (*at, step))
                return
        yield _said(at, f"expected {self._expected(node)} that fits the schema")

    def _parts(
        self, node: Mapping[str, Any], value: object
    ) -> "Iterator[tuple[int | str, object, SchemaChecker]]":
        """Yield the parts of a value, each with the checker of its schema."""
        if isinstance(value, dict):
            for name, schema in node.get("properties", {}).items():
                if name in value and isinstance(schema, dict):
                    yield name, value[name], self._of(schema)
            more = node.get("additionalProperties")
            if isinstance(more, dict):
                checker = self._of(more)
                yield from ((n, v, checker) for n, v in value.items() if n not in node.get("properties", {}))
        elif isinstance(value, list) and isinstance(node.get("items"), dict):
            checker = self._of(node["items"])
            yield from ((index, item, checker) for index, item in enumerate(value))

    def _of(self, schema: Mapping[str, Any]) -> "SchemaChecker":
        shared = {name: self._schema[name] for name in ("$defs", "definitions") if name in self._schema}
        # A reference to the whole is rare, and would then lead elsewhere: everything fits.
        if '"#"' in json.dumps([schema, shared]):
            return SchemaChecker({}, is_converted=False)
        return SchemaChecker({**schema, **shared}, is_converted=self._is_converted)

    def _target(self, node: Mapping[str, Any], level: int = 0) -> Mapping[str, Any]:
        """Return the schema that a reference names, or the schema itself."""
        if "$ref" in node and level < _REFERENCES_MAX:
            return self._target(self._node(node["$ref"].split("/")[1:]), level + 1)
        return node

    def _sentences(self, error: Any, at: _Path) -> Iterator[str]:
        """Return what one error of the validator says about which field."""
        keyword, path = error.kind.name, [*at, *error.instance_path]
        node = self._node(error.schema_path[:-1])
        if keyword == "required":
            yield _said([*path, error.kind.property], sentence("missing"))
        elif keyword == "additionalProperties":
            yield from _unknown(error.kind.unexpected[:REASONS_MAX], sorted(node.get("properties", ())), path)
        elif (mark := _mark_of(node)) and _is_marked_wrongly(error, mark):
            yield _said(
                [*path, mark], f"expected {_listed(list(map(_written, node['discriminator']['mapping'])))}"
            )
        elif keyword in {"anyOf", "oneOf"} and (inside := _nearest_branch(error)):
            for each in inside:
                yield from self._sentences(each, at)
        elif keyword in _BOUNDS and (limit := node.get(keyword)) is not None:
            kind, name = _BOUNDS[keyword]
            yield _said(path, sentence(kind, **{name: limit}))
        elif keyword in _OF_KIND or keyword in {"anyOf", "oneOf"}:
            yield _said(path, f"expected {self._expected(node)}")
        else:
            yield _said(path, str(error.message))

    def _node(self, path: Iterable[int | str]) -> Mapping[str, Any]:
        """Return the schema at this path, as its author wrote it."""
        found: Any = self._schema
        for step in path:
            if isinstance(found, dict):
                found = found.get(step, found.get("oneOf") if step == "anyOf" else None)
            elif isinstance(found, list) and isinstance(step, int) and step < len(found):
                found = found[step]
        return found if isinstance(found, dict) else {}

    def _expected(self, node: Mapping[str, Any], level: int = 0) -> str:
        """Say what a schema expects: "a whole number or null"."""
        node = self._target(node)
        if "const" in node:
            return _written(node["const"])
        if "enum" in node:
            return _listed(list(map(_written, node["enum"])))
        branches = node.get("anyOf") or node.get("oneOf")
        if branches and level < _REFERENCES_MAX:
            return _listed([self._expected(each, level + 1) for each in branches if isinstance(each, dict)])
        if node.get("format") in _FORMATS:
            return _FORMATS[node["format"]]
        if "pattern" in node:
            return f"text that matches {node['pattern']}"
        kinds = node.get("type", ())
        named = [_KINDS.get(kind, str(kind)) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        return _listed(named) or "another value"


def _unknown(names: Sequence[str], known: Sequence[str], path: Sequence[int | str]) -> Iterator[str]:
    what = "field" if path else "parameter"
    listed = ", ".join(known[:_LISTED_MAX]) or "none"
    for name in names:
        near = did_you_mean(name, known[:_COMPARED_MAX])
        yield _said([*path, name], f"unknown {what}{near}; known: {listed}")


def _mark_of(node: Mapping[str, Any]) -> str | None:
    """Return the field that distinguishes the branches of a union, if it has one."""
    found = node.get("discriminator")
    if isinstance(found, dict) and isinstance(found.get("mapping"), dict):
        return found.get("propertyName")
    return None


def _is_marked_wrongly(error: Any, mark: str) -> bool:
    path = [*error.instance_path, mark]
    return error.kind.name in {"anyOf", "oneOf"} and all(
        any(each.instance_path == path and each.kind.name in _OF_KIND for each in branch)
        for branch in error.kind.context
    )


def _nearest_branch(error: Any) -> Sequence[Any]:
    """Return the errors inside the branch that fits best; none if the value is of no branch's kind."""
    path = error.instance_path
    fitting = [
        errors
        for errors in error.kind.context
        if not any(each.instance_path == path and each.kind.name in _OF_KIND for each in errors)
    ]
    return min(
        fitting,
        key=lambda errors: (any(each.kind.name == "const" for each in errors), len(errors)),
        default=(),
    )


def _said(path: Sequence[int | str], text: str) -> str:
    where = ".".join(["parameters", *map(str, path)])[:200]
    return f"{where}: {text[:_SENTENCE_CHARS_MAX]}"


def _written(value: object) -> str:
    return repr(value) if isinstance(value, str) else json.dumps(value)


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) > _LISTED_MAX:
        return f"one of {', '.join(names[:_LISTED_MAX])} and {len(names) - _LISTED_MAX} more"
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _converted(node: Any) -> Any:
    """Return a schema that also accepts what pydantic converts to what the schema says."""
    if not isinstance(node, dict):
        return node
    widened = {
        ("anyOf" if name == "oneOf" else name): _mapped(name, value, _converted)
        for name, value in node.items()
        if name not in _COMMENTS and name not in _UNSURE
    }
    if node.get("uniqueItems"):
        widened.pop("maxItems", None)
    if "oneOf" in node and "anyOf" in node:
        del widened["anyOf"]
    kind = node.get("type")
    if isinstance(kind, str) and kind in _CONVERTED:
        kinds, pattern = _CONVERTED[kind]
        widened |= {"type": list(kinds), "pattern": pattern}
        if "enum" in node:
            del widened["enum"]
        if "const" in node:
            del widened["const"]
    elif kind == "string" and (form := widened.pop("format", None)) is not None:
        widened["type"] = ["string", "number", "boolean"]
        if form in _TEXT_FORMATS:
            widened["format"] = form
    return widened


def _with_known_formats(node: Any) -> Any:
    """Return a schema without the formats that are not checked."""
    if not isinstance(node, dict):
        return node
    return {
        name: _mapped(name, value, _with_known_formats)
        for name, value in node.items()
        if name not in _COMMENTS and not (name == "format" and value not in _TEXT_FORMATS)
    }


def _mapped(keyword: str, value: Any, change: Any) -> Any:
    """Apply `change` to the schemas that are the value of a keyword."""
    if keyword in SINGLES:
        return change(value)
    if keyword in MAPS and isinstance(value, dict):
        return {name: change(inner) for name, inner in value.items()}
    if keyword in LISTS and isinstance(value, list):
        return [change(inner) for inner in value]
    return value


@cache
def _format_checks() -> Mapping[str, Any]:
    """Return how the formats are checked: as a worker reads them, which is wider than the standard."""
    return {name: _check_of(TypeAdapter(kind)) for name, kind in _TEXT_FORMATS.items()}


def _check_of(adapter: TypeAdapter[Any]) -> Any:
    def is_readable(text: str) -> bool:
        try:
            adapter.validator.validate_json(to_json(text))
        except ValidationError:
            return False
        return True

    return is_readable
