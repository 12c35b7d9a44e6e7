"""Checks JSON Schemas of parameters and results before they are stored or compiled, and compiles them.

In: a schema from `actions.yaml`, from HTTP, from a worker or from the database. Out: a validator, or a
`ValueError` with the path and the reason. A schema that passes cannot make the executor load anything, and
costs a bounded number of steps for each value of a body: pattern matching takes linear time, and what
would multiply the steps is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from pydantic_core import to_json

SCHEMA_BYTES_MAX: Final = 64 * 1024
"""Size of one schema, as JSON."""
_LEVELS_MAX: Final = 64
_VISITS_MAX: Final = 200
"""How often a schema may visit one value of a body: once for each keyword that leads to it."""
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = re.compile(r"#(/(\$defs|definitions)/[^/~%]+)?")
_REGEX_BYTES_MAX: Final = 1024 * 1024
_REFUSED: Final = frozenset(
    {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"}
    | {"unevaluatedProperties", "unevaluatedItems"}
)
MAPS: Final = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value is an object of schemas."""
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SINGLES: Final = frozenset(
    {"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"}
)
"""Keywords whose value is a schema."""
_IN_PLACE: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
"""Keywords whose schemas visit the same value."""
_BY_NAME: Final = frozenset({"properties", "prefixItems"})
"""Keywords of which at most one schema visits each part of the value."""
_OF_LISTS: Final = frozenset({"items", "prefixItems", "contains"})
"""Keywords that descend into lists; the others that descend into a value descend into objects."""

Schema = Mapping[str, Any]


class Validator(Protocol):
    """A compiled schema: `jsonschema_rs.Draft202012Validator`."""

    def is_valid(self, instance: Any) -> bool:
        """Return whether a value fits."""

    def iter_errors(self, instance: Any) -> Iterator[Any]:
        """Return the errors of a value."""


def check_schema(schema: object) -> None:
    """Raise ValueError, with path and reason, unless the executor can use it as the schema of an object."""
    if not isinstance(schema, dict):
        raise ValueError("expected a JSON Schema: an object like {type: object, properties: {...}}")
    size_bytes = len(to_json(schema))
    if size_bytes > SCHEMA_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes, at most {SCHEMA_BYTES_MAX} are accepted; make it smaller")
    nodes = dict(_nodes(schema, (), 0))
    _check_cost(schema, nodes)
    compile_schema(schema)


def check_parameters_schema(schema: object) -> None:
    """Raise ValueError unless it is a usable schema that an object may fit: parameters are an object."""
    check_schema(schema)
    assert isinstance(schema, dict)
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise ValueError("type: parameters are an object; expected 'object'")


def visits(schema: Schema) -> int:
    """Return how often the schema visits one value of a body at most; `check_schema` has accepted it."""
    return _Cost(schema, {}).visits(schema)


def compile_schema(schema: Schema, formats: Mapping[str, Callable[[str], bool]] | None = None) -> Validator:
    """Return the validator of a schema that `check_schema` accepts; raises ValueError for an invalid one.

    `formats` are the formats to check; the others are comments, as in the standard.
    """
    # Imported where it is used: most commands of the CLI compile no schema.
    import jsonschema_rs  # noqa: PLC0415

    try:
        return jsonschema_rs.Draft202012Validator(
            dict(schema),
            formats=dict(formats or {}),
            validate_formats=formats is not None,
            # Without look-around and back references: linear in the length of the text.
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_REGEX_BYTES_MAX, dfa_size_limit=_REGEX_BYTES_MAX
            ),
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        raise ValueError(_compile_error(error)) from None


def subschemas(node: Schema) -> Iterator[tuple[str, tuple[int | str, ...], Any]]:
    """Yield the schemas directly inside one: keyword, path, schema."""
    for keyword, value in node.items():
        if keyword in SINGLES:
            yield keyword, (keyword,), value
        elif keyword in MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield keyword, (keyword, name), inner
        elif keyword in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield keyword, (keyword, index), inner


def path_text(path: tuple[int | str, ...]) -> str:
    """Return a path inside a schema as text, like "properties.customer_id"."""
    return ".".join(map(str, path))[:200]


def _at(path: tuple[int | str, ...], reason: str) -> ValueError:
    return ValueError(f"{path_text(path)}: {reason}" if path else reason)


def _nodes(
    node: object, path: tuple[int | str, ...], level: int
) -> Iterator[tuple[int, tuple[int | str, ...]]]:
    """Check the keywords of a schema and all schemas in it, and yield the path of each by its identity."""
    if isinstance(node, bool):
        return
    if not isinstance(node, dict):
        raise _at(path, "expected a schema: an object, true or false")
    if level > _LEVELS_MAX:
        raise _at(path, f"schemas are nested deeper than {_LEVELS_MAX} levels; use $defs and $ref")
    for keyword in sorted(node.keys() & _REFUSED):
        raise _at((*path, keyword), "is not supported; leave it out")
    if "$ref" in node and not (isinstance(node["$ref"], str) and _REF.fullmatch(node["$ref"])):
        raise _at((*path, "$ref"), "only '#' and '#/$defs/NAME' are followed; put the schema into $defs")
    if str(node.get("$schema", _DIALECT)).rstrip("#") != _DIALECT:
        raise _at((*path, "$schema"), f"expected {_DIALECT}; write the schema for it, or leave $schema out")
    yield id(node), path
    for _, inner_path, inner in subschemas(node):
        yield from _nodes(inner, (*path, *inner_path), level + 1)


class _Cost:
    """How often a schema visits one value of a body, at most.

    Schemas may refer to themselves, so the steps could grow with the power of the depth of a body. They do
    not if each schema on such a circle has one way only that leads to a circle from any one value.
    """

    def __init__(self, root: Schema, paths: Mapping[int, tuple[int | str, ...]]) -> None:
        self._root = root
        self._paths = paths
        self._known: dict[int, tuple[int, int]] = {}
        self._circular: set[int] = set()
        self._resolving: list[int] = []

    def find_circles(self) -> None:
        """Find the schemas from which a schema can be reached that contains or refers to itself."""
        ahead = {
            number: [id(inner) for _, inner in self._followed(node)] for number, node in self._all_nodes()
        }
        reachable = {number: _reached(number, ahead) for number in ahead}
        own = {number for number, found in reachable.items() if number in found}
        self._circular = own | {number for number, found in reachable.items() if found & own}
        for number, node in self._all_nodes():
            if number in own:
                self._check_ways(number, node)
                self._check_progress(number, node)

    def _all_nodes(self) -> Iterator[tuple[int, Schema]]:
        left: list[Schema] = [self._root]
        while left:
            node = left.pop()
            yield id(node), node
            left += [inner for _, _, inner in subschemas(node) if isinstance(inner, dict)]

    def _check_ways(self, number: int, node: Schema) -> None:
        ways = {"list": 0, "object": 0}
        named = dict(ways)
        for keyword, inner in self._followed(node):
            if id(inner) not in self._circular:
                continue
            if keyword in _IN_PLACE or keyword == "$ref":
                for kind in self._kinds_inside(inner, set()):
                    ways[kind] += 1
            elif keyword in _BY_NAME:
                named[_kind_of(keyword)] = 1
            else:
                ways[_kind_of(keyword)] += 1
        if any(ways[kind] + named[kind] > 1 for kind in ways):
            raise _at(
                self._paths[number],
                "refers to itself in more than one way, so a check could take very long; let only one branch "
                "refer to itself, or describe the inner value with {}",
            )

    def _check_progress(self, number: int, node: Schema) -> None:
        left, seen = [node], set()
        while left:
            for keyword, inner in self._followed(left.pop()):
                if keyword in _IN_PLACE or keyword == "$ref":
                    if id(inner) == number:
                        raise _at(self._paths[number], "refers to itself for the same value; leave that out")
                    if id(inner) not in seen:
                        seen.add(id(inner))
                        left.append(inner)

    def _kinds_inside(self, node: Schema, seen: set[int]) -> set[str]:
        """Return whether a schema descends into lists or objects with a schema on a circle."""
        if id(node) in seen:
            return set()
        seen.add(id(node))
        kinds: set[str] = set()
        for keyword, inner in self._followed(node):
            if id(inner) in self._circular:
                in_place = keyword in _IN_PLACE or keyword == "$ref"
                kinds |= self._kinds_inside(inner, seen) if in_place else {_kind_of(keyword)}
        return kinds

    def _followed(self, node: Schema) -> Iterator[tuple[str, Schema]]:
        """Yield the schemas that are applied with one, and by which keyword."""
        for keyword, _, inner in subschemas(node):
            if isinstance(inner, dict) and keyword not in {"$defs", "definitions"}:
                yield keyword, inner
        if "$ref" in node and (target := self._target(node)) is not None:
            yield "$ref", target

    def _target(self, node: Schema) -> Schema | None:
        found: Any = self._root
        for step in node["$ref"].split("/")[1:]:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, bool):
            return None
        if not isinstance(found, dict):
            raise _at((*self._paths[id(node)], "$ref"), f"there is no {node['$ref']!r} in the schema")
        return found

    def visits(self, node: Schema) -> int:
        """Return how often the schema visits one value at most, at any depth."""
        return max(self._counts(node))

    def _counts(self, node: Schema) -> tuple[int, int]:
        """Return the visits of the value itself, and of any one value inside it."""
        number = id(node)
        if number in self._known:
            return self._known[number]
        if number in self._resolving:
            return 1, 1
        self._resolving.append(number)
        here, named, inside = 1, 0, 0
        for keyword, inner in self._followed(node):
            of_value, of_parts = self._counts(inner)
            if keyword in _IN_PLACE or keyword == "$ref":
                here, inside = here + of_value, inside + of_parts
            elif keyword in _BY_NAME:
                named = max(named, of_value, of_parts)
            else:
                inside += max(of_value, of_parts)
        self._resolving.pop()
        result = min(here, _VISITS_MAX + 1), min(inside + named, _VISITS_MAX + 1)
        self._known[number] = result
        return result


def _check_cost(schema: Schema, paths: Mapping[int, tuple[int | str, ...]]) -> None:
    cost = _Cost(schema, paths)
    cost.find_circles()
    if cost.visits(schema) > _VISITS_MAX:
        raise ValueError(
            f"one value may be looked at more than {_VISITS_MAX} times; use fewer alternatives (anyOf, "
            "oneOf, allOf), or describe the inner values with {}"
        )


def _kind_of(keyword: str) -> str:
    return "list" if keyword in _OF_LISTS else "object"


def _reached(start: int, ahead: Mapping[int, list[int]]) -> set[int]:
    found: set[int] = set()
    left = list(ahead.get(start, ()))
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left += ahead.get(number, ())
    return found


def _compile_error(error: Any) -> str:
    path = path_text(tuple(error.instance_path))
    if path.endswith("pattern") or '"regex"' in error.message:
        reason = (
            "is not a pattern that can be matched in linear time, or is too large; leave out look-around "
            "and back references"
        )
    elif path.endswith("type"):
        reason = "expected string, integer, number, boolean, object, array, null, or a list of these"
    else:
        reason = f"is not valid: {error.message}"
    return f"{path}: {reason}"[:500] if path else reason[:500]
