"""Values of definitions and their changes, written as in a file."""

from collections.abc import Mapping
from typing import Any, Final

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.output import compact

_DURATIONS: Final = ("timeout", "ttl", "keep_for", "retry.delay", "retry.max_delay", "rate.per")


def shown(field: str, value: Any) -> str:
    """Return the value of a field of an action, resource or pool as it is written in a file."""
    if value is None:
        return "none"
    match field, value:
        case "rate", {"starts": starts, "per": per}:
            return f"{starts}/{format_duration(per)}"
        case "weights", {**weights}:
            return ", ".join(f"{ref} {weight}" for ref, weight in sorted(weights.items())) or "none"
        case "uses", [*uses]:
            return ", ".join(map(_use, uses)) or "none"
        case _ if field in _DURATIONS:
            return format_duration(value)
        case _:
            return value if isinstance(value, str) else compact(value)


def _use(use: Mapping[str, Any]) -> str:
    units = f" x{use['units']}" if use["units"] != 1 else ""
    weight = f" weight {use['weight']}" if use["weight"] != 1 else ""
    return f"{use['resource']}{units}{weight}"


def changed_fields(old: Json, new: Json) -> str:
    """Return what a change did, as old and new values."""
    return ", ".join(
        f"{field}: {_value(field, old)} -> {_value(field, new)}" for field in sorted(old.keys() | new.keys())
    )


def _value(field: str, values: Json) -> str:
    if field not in values:
        return "-"
    value = values[field]
    return compact(value) if isinstance(value, dict) and field != "weights" else shown(field, value)
