"""Says in one sentence why an execution waits, where it stands and when it is likely to start (P10).

Pure: JSON of the API in, text out. What is to come is said from the reader's clock.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from turnstile.executor.cli.connection import Json
from turnstile.executor.cli.output import instant

_NAMED_HOLDERS_MAX: Final = 10
_ENDS: Final = ("earliest", "latest")
_UNITS: Final = ((86400.0, "days", 2.0), (3600.0, "h", 2.0), (60.0, "min", 3.0))
"""Seconds of a unit, its name, and from how many on it is used; below them all: seconds."""


def waiting_sentence(execution: Json, *, now: datetime | None = None) -> str:
    """Return why it has not started; empty when it does not wait."""
    if execution.get("waiting_on") is None:
        return ""
    return "; ".join(_parts(execution, now or datetime.now(UTC)))


def _parts(execution: Json, now: datetime) -> Iterator[str]:
    if (position := execution.get("position")) is not None:
        yield _place(execution, position)
    yield _reason(execution["waiting_on"])
    if (expected := execution.get("estimated_start")) is not None:
        yield _start(expected, now)


def _place(execution: Json, position: int) -> str:
    length, key = execution.get("queue_length"), execution.get("concurrency_key")
    if length is None:
        return f"position {position}"
    of_key = "" if key is None else f", key {key}"
    return f"position {position} of {length} in {execution['action_ref']}{of_key}"


def _reason(waiting_on: Json) -> str:
    match waiting_on:
        case {"reason": "limit", "active_count": active, "max_concurrent": limit, "holders": holders}:
            verb = "is" if active == 1 else "are"
            return f"{active} of {limit} slots {verb} held{_by(holders)}"
        case {"reason": "paused"}:
            return "the action is paused"
        case {"reason": "no_worker", "pool": pool}:
            return f"no live worker of pool {pool} serves it"
        case {"reason": "not_due", "run_at": run_at}:
            return f"not due before {instant(run_at)}" if run_at else "not due yet"
        case {"reason": "handing_over"}:
            return "only the hand-over to a worker"
        case {"reason": "unavailable", "part": str(part), "message": message} if part.startswith("pool "):
            return f"{part} cannot be used: {message}"
        case {"reason": "unavailable", "part": part, "message": message}:
            return f"the executor cannot reach the {part}: {message}"
        case _:
            return str(waiting_on.get("reason", "unknown"))


def _by(holders: Sequence[int]) -> str:
    if not holders:
        return ""
    more = "" if len(holders) <= _NAMED_HOLDERS_MAX else f" and {len(holders) - _NAMED_HOLDERS_MAX} more"
    return f" by {', '.join(f'#{holder}' for holder in holders[:_NAMED_HOLDERS_MAX])}{more}"


def _start(expected: Json, now: datetime) -> str:
    earliest, latest = ((datetime.fromisoformat(expected[end]) - now).total_seconds() for end in _ENDS)
    if latest < 1:
        return "starts any moment"
    if earliest < 1:
        return f"starts within about {_about(latest)}"
    if _about(earliest) == _about(latest):
        return f"starts in about {_about(latest)}"
    return f"starts in about {_about(earliest)} to {_about(latest)}"


def _about(seconds: float) -> str:
    for size, name, least in _UNITS:
        if seconds >= size * least:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
