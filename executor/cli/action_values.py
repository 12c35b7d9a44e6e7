"""How the fields of an action are shown to people."""

from typing import Any, Final

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.output import compact

_DURATIONS: Final = ("timeout", "ttl", "keep_for", "delay", "max_delay")


def shown(field: str, value: Any) -> str:
    """Return the value of a field as it would be written in a file."""
    if value is None:
        return "none"
    if field.removeprefix("retry.") in _DURATIONS:
        return format_duration(value)
    return value if isinstance(value, str) else compact(value)
