"""How executions are shown: rows of lists, fields of one, and the sentence that says why one waits (P10).

Pure: JSON of the API in, text out.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.output import Columns, compact, counted, instant


def status_text(item: Json) -> str:
    """Return the status of a listed execution or slot holder, and whether it has been asked to stop."""
    # An executor of an earlier version does not say it.
    return f"{item['status']}, stopping" if item.get("stopping") else str(item["status"])


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
    "STATE": "state",
    "NEEDS": "units",
    "HELD": "held",
    "WHAT HELPS": "help",
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
_NAMED_MAX: Final = 3
_UNSTARTED_SECONDS: Final = 30.0
"""So long after the grant of its slot, an execution that its worker has not started is shown as such."""
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
    if execution.get("waiting_on") is None:
        return ""
    return "; ".join(_waiting_parts(execution, now or datetime.now(UTC)))


def cause_lines(execution: Json, *, now: datetime | None = None) -> Iterator[str]:
    """Yield why those do not run that have what an execution waits for: from it to the blocker."""
    on = execution.get("waiting_on")
    while on is not None and (cause := on.get("root_cause")) is not None:
        one, several = ("a slot", "slots") if on["reason"] == "limit" else ("units", "units")
        match cause["ids"]:
            case []:
                waits = "The executions ahead wait"
            case [holder]:
                waits = f"#{holder} holds {one} and waits"
            case holders:
                waits = f"{_listed([f'#{each}' for each in holders])} hold {several} and wait"
        on = cause["on"]
        yield f"{waits}: {_reason(on, now or datetime.now(UTC))}"


def path_rows(execution: Json) -> list[Json]:
    """Return the rows of `PATH_COLUMNS`; none if the execution does not wait."""
    return [Json(each | _path_words(each, execution)) for each in execution.get("path", ())]


def _path_words(step: Json, execution: Json) -> dict[str, object]:
    is_waiting = step["state"] == "waiting"
    capacity = "" if step["capacity"] is None else f" of {step['capacity']}"
    return {
        "state": "waits here" if is_waiting else step["state"].replace("_", " "),
        "held": f"{step['held']}{capacity}",
        "help": _help(execution["waiting_on"], execution["action_ref"]) if is_waiting else "",
    }


def _help(on: Json, ref: str) -> str:
    """Return the command that helps, or that shows what does."""
    match on:
        case {"reason": "paused"}:
            return f"executor actions resume {ref}"
        case {"reason": "limit"}:
            return f"executor actions limit {ref} NUMBER"
        case {"reason": "total"}:
            return "max_concurrent_total: executor actions apply"
        case {"reason": "resource", "closed": "paused", "gate": gate}:
            return f"executor resources resume {gate.removeprefix('resource ')}"
        case {"reason": "resource", "gate": gate}:
            return f"executor resources queue {gate.removeprefix('resource ')}"
        case {"reason": "pool", "closed": "paused", "pool": pool}:
            return f"executor pools resume {pool}"
        case {"reason": "no_worker" | "pool"}:
            return "more workers: worker serve"
        case _:
            return ""


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
    on = execution["waiting_on"]
    blocker = _blocker(on)
    cause = "" if blocker is on else f"{_reason(blocker, now)}; because of this "
    yield cause + (_not_started(execution, now) or _reason(on, now))
    if (position := execution.get("position")) is not None:
        length, key = execution.get("queue_length"), execution.get("concurrency_key")
        of_key = "" if key is None else f", key {key}"
        queue = "" if length is None else f" of {length} in {execution['action_ref']}{of_key}"
        yield f"position {position}{queue}"
    if (estimate := execution.get("estimated_start")) is not None:
        yield _start(estimate, now)


def _blocker(on: Json) -> Json:
    """Return the end of the chain of causes: what to fix."""
    while (cause := on.get("root_cause")) is not None:
        on = cause["on"]
    return on


def _not_started(execution: Json, now: datetime) -> str | None:
    """Return since when it is granted and not started, if that is long; else None."""
    on = execution["waiting_on"]
    granted_at = on.get("granted_at")
    if on["reason"] != "handing_over" or granted_at is None:
        return None
    waited_seconds = _seconds_since(granted_at, now)
    if waited_seconds < _UNSTARTED_SECONDS:
        return None
    return (
        f"granted {format_duration(round(waited_seconds))} ago to worker {execution.get('worker_id')}, which "
        "has a free slot and has not started it: see its log and /readyz"
    )


def _seconds_since(instant: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(instant)).total_seconds()


def _reason(waiting_on: Json, now: datetime) -> str:
    match waiting_on:
        case {"reason": "limit", "active_count": active, "max_concurrent": limit, "holders": holders}:
            return f"{active} of {limit} slots in use{_by(holders, waiting_on, now)}"
        case {"reason": "total" | "resource", "gate": _}:
            return _at_gate(waiting_on, now)
        case {"reason": "rate", "rate_of": of, "starts": starts, "per_seconds": per_seconds}:
            rate = f"the rate of {_rate_of(of)} allows {starts} starts per {format_duration(per_seconds)}"
            next_at = waiting_on.get("next_start_at")
            next_start = "" if next_at is None else f"; next start {instant(next_at)}"
            return f"{rate}{next_start}{_position(waiting_on, ' of its action')}"
        case {"reason": "paused"}:
            return "the action is paused"
        case {"reason": "no_worker", "pool": pool, "other_pools": [other, *more]}:
            having = (
                f"a worker in pool {other} has it" if not more else f"workers in {_pools(waiting_on)} have it"
            )
            return (
                f"no live worker in pool {pool} serves the action, but {having}; let one serve both pools "
                f"(TURNSTILE_WORKER_POOLS={other},{pool}), or change the action's pool "
                "(executor actions apply)"
            )
        case {"reason": "no_worker", "pool": pool}:
            return (
                f"no live worker in pool {pool} serves the action; start one: "
                f"TURNSTILE_WORKER_POOLS={pool} worker serve --actions MODULE"
            )
        case {"reason": "pool"}:
            return _in_pool(waiting_on, now)
        case {"reason": "not_due", "run_at": run_at}:
            return f"not due before {instant(run_at)}" if run_at else "not due yet"
        case {"reason": "handing_over"}:
            return "about to start at a worker"
        case {"reason": "unavailable", "part": part, "message": message}:
            return f"the executor cannot reach the {part}: {message}"
        case _:
            return str(waiting_on.get("reason", "unknown"))


def _pools(on: Json) -> str:
    return f"the pools {', '.join(on['other_pools'])}"


def _in_pool(on: Json, now: datetime) -> str:
    pool, capacity = on["pool"], on["capacity"]
    if on.get("closed") == "paused":
        return f"pool {pool} is paused; executor pools resume {pool} continues it{_position(on, ' there')}"
    if on["held"] < capacity:
        return f"not its turn yet in pool {pool}{_position(on, ' there')}"
    return (
        f"all {capacity} worker slots of pool {pool} are in use{_by(on['holders'], on, now)}"
        f"{_position(on, ' there')}"
    )


def _at_gate(on: Json, now: datetime) -> str:
    name = "the total of its action" if on["gate"] == "total" else on["gate"]
    needs = f"needs {counted(on['units'], 'unit')}"
    match on["closed"]:
        case "paused":
            return f"{name} is paused"
        case "capacity_zero":
            return f"the capacity of {name} is 0"
        case "capacity_too_low":
            return f"{needs} of {name}, whose capacity is {on['capacity']}"
        case _:
            free = "" if on["capacity"] is None else f", {on['free']} of {on['capacity']} free"
            holders = [f"#{holder['id']} ({holder['units']})" for holder in on["holders"]]
            held = f"; held by {_listed(holders)}{_since(on, now)}" if holders else ""
            return f"{needs} of {name}{free}{_first(on)}{held}{_position(on, ' there')}"


def _first(on: Json) -> str:
    """Return what is ahead where units are free, but not so many as that needs."""
    first = on.get("first")
    if first is None or on["free"] is None or on["free"] < on["units"]:
        return ""
    return f", but #{first['id']} is ahead and needs {first['units']}"


def _rate_of(owner: str) -> str:
    return "its action" if owner == "action" else owner


def _position(on: Json, of: str) -> str:
    return "" if on.get("position") is None else f"; position {on['position']}{of}"


def _by(holders: Sequence[int], on: Json, now: datetime) -> str:
    return f", held by {_listed([f'#{each}' for each in holders])}{_since(on, now)}" if holders else ""


def _since(on: Json, now: datetime) -> str:
    if (since := on.get("held_since")) is None:
        return ""
    most = "up to " if len(on["holders"]) > 1 else ""
    return f" for {most}{format_duration(max(round(_seconds_since(since, now)), 0))}"


def _listed(names: Sequence[str]) -> str:
    more = "" if len(names) <= _NAMED_MAX else f" and {len(names) - _NAMED_MAX} more"
    return f"{', '.join(names[:_NAMED_MAX])}{more}"


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
