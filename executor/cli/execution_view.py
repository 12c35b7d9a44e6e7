"""How executions are shown: rows of lists, fields of one, and the sentence that says why one waits (P10).

Pure: JSON of the API in, text out.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.output import Columns, compact, instant


def status_text(item: Json) -> str:
    """Return the status of a listed execution or slot holder, and whether it has been asked to stop."""
    # An executor of an earlier version does not say it.
    return f"{item['status']}, stopping" if item.get("stopping") else str(item["status"])


_PATH_STATES: Final = {"waiting": "waits here", "not_reached": "not reached", "elsewhere": "not passed by it"}


def path_state(step: Json) -> str:
    """Return the state of a gate, the holders that wait there, and whether it is the blocker."""
    words = [_PATH_STATES.get(step["state"], step["state"])]
    if holders := step["waiting_holders"]:
        words.append(
            f"{', '.join(f'#{each}' for each in holders)} {'waits' if len(holders) == 1 else 'wait'}"
        )
    if step["is_blocker"]:
        words.append("blocker")
    return ", ".join(words)


LIST_COLUMNS: Final[Columns] = {
    "ID": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "STATUS": status_text,
    "ATTEMPT": "attempt",
    "CREATED": lambda execution: instant(execution["created_at"]),
    "DURATION": lambda execution: run_duration(execution["started_at"], execution["completed_at"]),
    "ERROR": lambda execution: error_text(execution["error"]),
}
ATTEMPT_COLUMNS: Final[Columns] = {
    "ATTEMPT": "attempt",
    "OUTCOME": lambda attempt: attempt["outcome"] or "running",
    "WORKER": "worker_id",
    "STARTED": lambda attempt: instant(attempt["started_at"]),
    "DURATION": lambda attempt: run_duration(attempt["started_at"], attempt["ended_at"]),
    "PROGRESS": lambda attempt: progress_text(attempt.get("progress")),
    "ERROR": lambda attempt: error_text(attempt["error"]),
}
PATH_COLUMNS: Final[Columns] = {
    "ON THE WAY": "gate",
    "STATE": path_state,
    "NEEDS": "units",
    "HELD": lambda step: f"{step['held']}" + ("" if step["capacity"] is None else f" of {step['capacity']}"),
}
GATE_COLUMNS: Final[Columns] = {
    "GATE": "gate",
    "UNITS": "units",
    "ARRIVED": lambda step: instant(step["arrived_at"]),
    "PASSED": "passed",
}
_INSTANTS: Final = (
    "created_at",
    "run_at",
    "queued_at",
    "scheduled_at",
    "started_at",
    "completed_at",
    "expires_at",
)
_UNITS: Final = ((86400.0, "days", 2.0), (3600.0, "h", 2.0), (60.0, "min", 3.0))
"""Seconds of a unit, its name, and the smallest number of units for which it is used; below: seconds."""


def fields(execution: Json) -> Iterator[tuple[str, object]]:
    """Yield names and values of one execution."""
    for name in ("id", "action_ref", "status"):
        yield name, execution[name]
    yield "stopping", stopping_sentence(execution.get("stopping"))
    yield "progress", progress_text(execution.get("progress"))
    for name in ("concurrency_key", "idempotency_key", "priority", "attempt", "worker_id"):
        # An executor of an earlier version has no priorities.
        yield name, execution.get(name)
    yield "parameters", compact(execution["parameters"])
    if execution["metadata"]:
        yield "metadata", compact(execution["metadata"])
    if execution["status"] == "completed":
        yield "result", compact(execution["result"])
    yield "error", error_text(execution["error"])
    yield from ((name, instant(execution[name])) for name in _INSTANTS)
    yield "duration", run_duration(execution["started_at"], execution["completed_at"])


def gate_rows(gates: Sequence[Json], *, has_ended: bool = False) -> list[Json]:
    """Return the rows of `GATE_COLUMNS`: an execution waits at the last gate that it has not passed."""
    last = "ended here" if has_ended else "waits"
    waits = {**dict.fromkeys(range(len(gates)), "with the next"), len(gates) - 1: last}
    return [Json(each | {"passed": instant(each["passed_at"]) or waits[n]}) for n, each in enumerate(gates)]


def waiting_sentence(execution: Json, *, now: datetime | None = None) -> str:
    """Return the blocker, position and estimated start; empty if the execution does not wait."""
    if execution.get("blocker") is None:
        return ""
    return "; ".join(_waiting_parts(execution, now or datetime.now(UTC)))


def help_sentence(execution: Json) -> str:
    """Return what helps an execution that waits, and the command for it."""
    blocker = execution["blocker"]
    return ": ".join(filter(None, (blocker["help"], blocker["command"])))


def stopping_sentence(stopping: Json | None) -> str:
    """Return why a running execution is to stop, since when, and when it is killed; empty if it is not."""
    if stopping is None:
        return ""
    given = stopping["cancel_reason"]
    why = "its cancellation was requested" if stopping["reason"] == "cancel" else "its timeout is over"
    reason = f" ({given})" if given and stopping["reason"] == "cancel" else ""
    kill_at = instant(stopping["kill_at"])
    return f"since {instant(stopping['since'])}: {why}{reason}; it is killed at {kill_at} if it still runs"


def progress_text(progress: Json | None) -> str:
    """Return how far an attempt has come; empty if it has reported nothing."""
    if progress is None:
        return ""
    done, total = progress["done"], progress["total"]
    parts = [f"{done:,g}" if total is None else f"{done:,g} of {total:,g} ({_percent(done, total)})"]
    if progress["message"]:
        parts.append(progress["message"])
    return f"{': '.join(parts)}, at {instant(progress['updated_at'])}"


def _percent(done: float, total: float) -> str:
    return "100 %" if done >= total else f"{100 * done / total:.0f} %"


def error_text(error: Json | None) -> str:
    """Return an error on one line."""
    return "" if error is None else f"{error['type']}: {error['message']}"


def run_duration(started_at: str | None, ended_at: str | None) -> str:
    """Return the duration of a run; empty until it has ended."""
    if started_at is None or ended_at is None:
        return ""
    run = datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)
    return format_duration(max(run.total_seconds(), 0.0))


def _waiting_parts(execution: Json, now: datetime) -> Iterator[str]:
    on, blocker = execution["waiting_on"], execution["blocker"]
    yield blocker["why"] + _held_by(blocker, now)
    if blocker["until"] is not None:
        yield f"not before {instant(blocker['until'])}"
    if (position := execution.get("position")) is not None:
        length, key = execution.get("queue_length"), execution.get("concurrency_key")
        of_key = "" if key is None else f", key {key}"
        queue = "" if length is None else f" of {length} in {execution['action_ref']}{of_key}"
        yield f"position {position}{queue}"
    elif (position := on.get("position")) is not None:
        yield f"position {position} there"
    if (estimate := execution.get("estimated_start")) is not None:
        yield _start(estimate, now)


def _held_by(blocker: Json, now: datetime) -> str:
    """Return who holds what blocks, and how long the first of them has."""
    named, since = blocker["held_by"], ""
    if blocker["since"] is not None:
        seconds = (now - datetime.fromisoformat(blocker["since"])).total_seconds()
        most = "up to " if len(named) > 1 else ""
        since = f" for {most}{format_duration(max(round(seconds), 0))}"
    more = blocker["holders"] - len(named)
    holders = ", ".join(f"#{each}" for each in named) + (f" and {more} more" if more else "")
    return (f", held by {holders}" if named else "") + since


def _start(estimate: Json, now: datetime) -> str:
    earliest, latest = (
        (datetime.fromisoformat(estimate[end]) - now).total_seconds() for end in ("earliest", "latest")
    )
    if latest < -1:
        return f"its estimated start was {_about(-latest)} ago"
    if latest < 1:
        return "starts any moment"
    if estimate.get("overdue"):
        return "what is ahead runs longer than all known runs, so its start is not known"
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
