"""Shows why an execution waits, and when it will start, as the HTTP API does (P10).

In: what the leader explains. Out: schemas.
"""

from datetime import UTC, datetime
from typing import Any, Final, overload

from turnstile.common.schemas import EstimatedStart
from turnstile.executor.queries.schemas import (
    NAMED_MAX,
    HandingOver,
    NotDue,
    OutOfReach,
    PathStep,
    RootCause,
    UnitHolder,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnPool,
    WaitingOnRate,
    WaitingOnResource,
    WaitingOnTotal,
    WaitingOnWorker,
)
from turnstile.executor.questions import explain
from turnstile.executor.questions.estimate import Interval

_BY_ITSELF: Final = ("not_due", "handing_over")
"""Reasons to wait that need no change: holders that wait for this are no blocker."""


@overload
def instant(seconds: float) -> datetime: ...
@overload
def instant(seconds: None) -> None: ...
def instant(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as an instant."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def estimated_start(interval: Interval | None) -> EstimatedStart | None:
    """Return the interval in which an execution will start."""
    if interval is None:
        return None
    return EstimatedStart(
        earliest=instant(interval.earliest), latest=instant(interval.latest), overdue=interval.is_overdue
    )


def path(explanation: explain.Explanation) -> list[PathStep]:
    """Return the gates before a start, in order, and those where only holders of what it waits for wait."""
    steps = {
        each.gate: PathStep(**each._asdict(), is_blocker=False, waiting_holders=[])
        for each in explanation.path
    }
    on, ids = explanation.waiting_on, tuple[int, ...]()
    while on is not None and on.reason not in _BY_ITSELF:
        gate = explain.gate_of(on)
        known = steps.get(gate) or PathStep(
            gate=gate, state="elsewhere", is_blocker=False, units=on.units, held=on.held,
            capacity=on.capacity, waiting_holders=[],
        )  # fmt: skip
        cause = on.root_cause
        is_last = cause is None or cause.on.reason in _BY_ITSELF
        named = known.waiting_holders or list(ids[:NAMED_MAX])
        steps[gate] = known.model_copy(update={"is_blocker": is_last, "waiting_holders": named})
        ids, on = (cause.ids, cause.on) if cause else ((), None)
    return [*steps.values()]


def waiting_on(on: explain.WaitingOn, broker_trouble: str | None = None) -> WaitingOn:
    """Return what an execution waits for; without the broker what could start waits for that."""
    if broker_trouble is not None and on.reason in ("pool", "handing_over"):
        return OutOfReach(part="broker", message=broker_trouble)
    match on.reason:
        case "paused":
            return WaitingOnPause()
        case "no_worker":
            return WaitingOnWorker(pool=on.name, other_pools=list(on.other_pools))
        case "limit":
            return WaitingOnLimit(
                limit_of="key" if on.name else "action",
                max_concurrent=on.capacity or 0,
                active_count=on.held,
                holders=_ids(on),
                held_since=_held_since(on),
                root_cause=_cause(on, broker_trouble),
            )
        case "total":
            return WaitingOnTotal(gate="total", **_at_gate(on, broker_trouble))
        case "resource":
            return WaitingOnResource(gate=f"resource {on.name}", **_at_gate(on, broker_trouble))
        case "rate":
            return _on_rate(on)
        case "pool":
            return _on_pool(on)
        case "not_due":
            return NotDue(run_at=instant(on.at))
        case "handing_over":
            return HandingOver(pool=on.name, granted_at=instant(on.at))


def _on_rate(on: explain.WaitingOn) -> WaitingOnRate:
    return WaitingOnRate(
        rate_of=on.name if on.name.startswith("resource ") else "action",
        starts=on.capacity or 0,
        per_seconds=on.per_seconds,
        next_start_at=instant(on.at),
        position=on.position,
        waiting=on.waiting,
    )


def _on_pool(on: explain.WaitingOn) -> WaitingOnPool:
    return WaitingOnPool(
        pool=on.name,
        closed="paused" if on.closed else None,
        capacity=on.capacity or 0,
        held=on.held,
        position=on.position,
        waiting=on.waiting,
        holders=_ids(on),
        held_since=_held_since(on),
    )


def _at_gate(on: explain.WaitingOn, broker_trouble: str | None) -> dict[str, Any]:
    return {
        "closed": on.closed,
        "units": on.units,
        "free": None if on.capacity is None else max(on.capacity - on.held, 0),
        "capacity": on.capacity,
        "position": on.position,
        "position_of": "gate" if on.closed is None else "queue",
        "waiting": on.waiting,
        "first": None if on.first is None else UnitHolder(id=on.first[0], units=on.first[1]),
        "held_since": _held_since(on),
        "holders": [UnitHolder(id=each.id, units=each.units) for each in on.holders],
        "root_cause": _cause(on, broker_trouble),
    }


def _ids(on: explain.WaitingOn) -> list[int]:
    return sorted(each.id for each in on.holders)


def _held_since(on: explain.WaitingOn) -> datetime | None:
    return instant(min((each.since for each in on.holders), default=None))


def _cause(on: explain.WaitingOn, broker_trouble: str | None) -> RootCause | None:
    """Return what holders that do not run wait for; an execution that is about to start has none."""
    cause = on.root_cause
    if cause is None:
        return None
    found: Any = waiting_on(cause.on, broker_trouble)
    return None if isinstance(found, HandingOver | NotDue) else RootCause(ids=list(cause.ids), on=found)
