"""Compares the definition of an action in the database with that of the code.

In: the columns of both. Out: each field that differs as it is written in a file, with both values, and the
command that applies the code's. The database takes precedence until that command is run. Pure.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.durations import format_duration
from turnstile.worker.schemas import ActionSchemas, is_same_schema

_DURATIONS: Final[Mapping[str, str]] = {
    "timeout_seconds": "timeout",
    "ttl_seconds": "ttl",
    "keep_for_seconds": "keep_for",
    "retry_delay_seconds": "retry.delay",
    "retry_max_delay_seconds": "retry.max_delay",
}
"""The field of each column that is a duration."""
_RENAMED: Final[Mapping[str, str]] = {
    "retry_max_attempts": "retry.max_attempts",
    "retry_factor": "retry.factor",
    "retry_jitter": "retry.jitter",
}
_RATE: Final = ("rate_starts", "rate_per_seconds")
_NOT_COMPARED: Final = frozenset({"concurrency_key_path", "parameters_schema", "result_schema"})
"""A path says what its key says; schemas are compared by what they mean, or not at all."""
_VALUE_CHARS_MAX: Final = 200


class Values(NamedTuple):
    """A field that differs, as text."""

    stored: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An action whose definition in the database differs from the code. The database takes precedence."""

    ref: str
    values: Mapping[str, Values]
    """By field, as in a file; without the schema."""
    schemas: tuple[Any, Any] | None = None
    """The schema of the parameters in the database and that of the code, if they differ."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that differ, by name."""
        return tuple(sorted([*self.values, *(["parameters_schema"] if self.schemas is not None else [])]))

    def __str__(self) -> str:
        """Return both values of each field."""
        return "; ".join(
            f"{field}: stored {stored}, code {code}" for field, (stored, code) in sorted(self.values.items())
        )

    def remedy(self, module: str) -> str:
        """Return the command that makes the database equal to the code of this module."""
        match self.fields:
            case ("max_concurrent",):
                return f"executor actions limit {self.ref} {self.values['max_concurrent'].code}"
            case ("paused",):
                command = "pause" if self.values["paused"].code == "true" else "resume"
                return f"executor actions {command} {self.ref}"
            case _:
                return (
                    f"worker actions --actions {shlex.quote(module)} --ref {self.ref} --json "
                    "| executor actions apply -"
                )


def pools_of_actions(definitions: Sequence[ActionDefinition], differences: Sequence[Difference]) -> list[str]:
    """Return the pools of these actions as the database has them, by name."""
    stored = {each.ref: each.values["pool"].stored for each in differences if "pool" in each.values}
    return sorted({stored.get(each.ref, each.pool) for each in definitions})


def difference(
    wanted: Mapping[str, Any], stored: Mapping[str, Any], schemas: ActionSchemas | None
) -> Difference | None:
    """Return how the columns of an action differ from those that the code wants; None: they do not."""
    given, derived = stored.get("parameters_schema"), None if schemas is None else schemas.parameters
    # A file may give a schema that says the same: code never does.
    differ = given is not None and derived is not None and not is_same_schema(given, derived)
    names = [name for name in wanted.keys() - _NOT_COMPARED if stored.get(name) != wanted[name]]
    before, after = _fields(stored, names), _fields(wanted, names)
    values = {name: Values(before[name], after[name]) for name in after}
    pair = (given, derived) if differ else None
    return Difference(ref=str(wanted["ref"]), values=values, schemas=pair) if values or differ else None


def _fields(columns: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    return dict(_field(name, columns) for name in names)


def _field(name: str, columns: Mapping[str, Any]) -> tuple[str, str]:
    value = columns.get(name)
    if name in _RATE:
        starts, per = (columns.get(part) for part in _RATE)
        return "rate", "none" if starts is None or per is None else f"{starts}/{format_duration(per)}"
    if name == "fair":
        return "order", "fair" if value else "arrival"
    if name in _DURATIONS:
        return _DURATIONS[name], "none" if value is None else format_duration(value)
    return _RENAMED.get(name, name), _text(value)


def _text(value: object) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS_MAX else text[: _VALUE_CHARS_MAX - 1] + "…"
