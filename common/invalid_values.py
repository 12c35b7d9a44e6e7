"""Says in plain words what a value should have been, for every error of validation that a user reads.

In: errors of pydantic. Out: a path and a sentence each; its own sentences speak of "input", and name each
branch of a union. A validator's own message stays as it is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from turnstile.common.nearest import did_you_mean

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "uuid": "a UUID",
    "date": "a date like 2030-01-31",
    "list": "a list",
    "set": "a list",
    "tuple": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "datetime": "a time like 2030-01-31T09:00:00Z",
    "none_required": "null",
}
_KIND_ENDINGS: Final = ("_from_float", "_from_date_parsing", "_parsing", "_type")
_BOUNDS: Final = {
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected {ge} or more",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected {le} or less",
    "string_too_short": "expected {min_length} characters or more",
    "string_too_long": "expected {max_length} characters or fewer",
    "too_short": "expected {min_length} items or more",
    "too_long": "expected {max_length} items or fewer",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "literal_error": "expected {expected}",
    "enum": "expected {expected}",
    "finite_number": "expected a finite number",
    "missing": "required, but missing",
    "extra_forbidden": "unknown field",
}
_PROBLEMS_MAX: Final = 5
_FIELD: Final = re.compile("([a-z_]+): ")
_OWN: Final = ("value_error", "assertion_error")
"""Kinds whose sentence a validator has written."""
_OF_THE_LIBRARY: Final = re.compile("^.{0,40}?should (?:be |have )?")
_BRANCHES: Final = frozenset({"str", "int", "float", "bool", "none"})


class InvalidValue(NamedTuple):
    """One value that was rejected."""

    location: tuple[int | str, ...]
    kind: str
    """The library's name of the error, such as "extra_forbidden"."""
    sentence: str

    @property
    def path(self) -> str:
        """The start of the location as text, such as "uses.0.units"; empty for the value as a whole."""
        return ".".join(map(str, self.location))[:200]


def invalid_values(errors: Iterable[Mapping[str, Any]]) -> list[InvalidValue]:
    """Return one entry for each rejected value, in order; `errors` is the list of a ValidationError."""
    return [_with_its_field(each) for each in _without_branches(errors)]


def explained(error: ValidationError, *, whole: str, model: type[BaseModel] | None = None) -> str:
    """Return the first problems in one line; `whole` names the value, `model` has its known fields."""
    found = invalid_values(error.errors(include_url=False, include_input=False))[:_PROBLEMS_MAX]
    return "; ".join(f"{each.path or whole}: {_explained(each, model)}" for each in found)


def _explained(value: InvalidValue, model: type[BaseModel] | None) -> str:
    if model is None or value.kind != "extra_forbidden":
        return value.sentence
    known = known_fields(model, value.location)
    return (
        f"{value.sentence}{did_you_mean(str(value.location[-1]), known)}; known fields are {', '.join(known)}"
    )


def known_fields(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Return the names of the fields allowed at the location of an unknown field."""
    for step in location[:-1]:
        kind = model.model_fields[str(step)].annotation if step in model.model_fields else None
        model = _model_in(kind) or model
    return list(model.model_fields)


def _model_in(kind: object) -> type[BaseModel] | None:
    """Return the model in the annotation of a field: itself, or that of its items, or None."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((model for part in get_args(kind) if (model := _model_in(part)) is not None), None)


def sentence(kind: str, **context: object) -> str:
    """Return the sentence for one kind of error of pydantic, such as `greater_than` with `gt`."""
    return _sentence({"type": kind, "msg": kind, "ctx": context})


def _with_its_field(value: InvalidValue) -> InvalidValue:
    # A validator of a whole object has the object's location, and its sentence begins with the field.
    match = _FIELD.match(value.sentence) if value.kind == "value_error" else None
    if match is None:
        return value
    field = match[1]
    location = value.location if value.location[-1:] == (field,) else (*value.location, field)
    return value._replace(location=location, sentence=value.sentence[match.end() :])


def _without_branches(errors: Iterable[Mapping[str, Any]]) -> Iterator[InvalidValue]:
    for union, group in groupby(errors, key=_union):
        alike = list(group)
        if union is None or (len(alike) == 1 and "[" not in str(alike[0]["loc"][len(union)])):
            yield from (InvalidValue(tuple(each["loc"]), each["type"], _sentence(each)) for each in alike)
            continue
        # The branch that fits best is wrong inside.
        inside = [each for each in alike if len(each["loc"]) > len(union) + 1]
        for each in inside:
            yield InvalidValue((*union, *each["loc"][len(union) + 1 :]), each["type"], _sentence(each))
        if not inside:
            expected = dict.fromkeys(_sentence(each).removeprefix("expected ") for each in alike)
            yield InvalidValue(union, alike[0]["type"], f"expected {' or '.join(expected)}")


def _union(error: Mapping[str, Any]) -> tuple[int | str, ...] | None:
    """Return the location of the union that this error belongs to a branch of, if it does."""
    steps = enumerate(map(str, error["loc"]))
    branch = next((index for index, step in steps if index and (step in _BRANCHES or "[" in step)), None)
    return None if branch is None else tuple(error["loc"][:branch])


def _kind_of_value(kind: str) -> str | None:
    for ending in _KIND_ENDINGS:
        if kind.endswith(ending):
            return _KINDS.get(kind.removesuffix(ending))
    return _KINDS.get(kind)


def _sentence(error: Mapping[str, Any]) -> str:
    kind = error["type"]
    if kind in _BOUNDS:
        try:
            return _BOUNDS[kind].format(**error.get("ctx", {}))
        except KeyError:
            # Listed without its context.
            return str(error["msg"])
    value = _kind_of_value(kind)
    if value is not None:
        return f"expected {value}"
    words = str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return _OF_THE_LIBRARY.sub("expected ", words) if kind not in _OWN else words
