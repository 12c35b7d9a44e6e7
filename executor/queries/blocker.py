"""What keeps an execution waiting, who holds it and what would help: one statement for all screens (P10).

In: what an execution waits for, as the API shows it. Out: the blocker, as the API shows it. Where those that
hold what it waits for wait themselves, the end of that chain is the blocker: only a change there helps.
Sentences have no instants, because each screen shows these in its own way.
"""

from datetime import datetime
from shlex import quote
from typing import Final, NamedTuple, TypeAlias, assert_never

from turnstile.common.domain.durations import format_duration
from turnstile.executor.queries.schemas import (
    NAMED_MAX,
    Blocker,
    HandingOver,
    NotDue,
    OutOfReach,
    RootCause,
    StoredExecution,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnPool,
    WaitingOnRate,
    WaitingOnResource,
    WaitingOnTotal,
    WaitingOnWorker,
)

_UNSTARTED_SECONDS: Final = 30.0
"""So long after its grant, an execution that its worker has not started is shown as such."""
_NOTHING: Final = "Nothing: it starts by itself"
_APPLY: Final = "executor actions apply FILE"

_Gate: TypeAlias = WaitingOnTotal | WaitingOnResource


class _Said(NamedTuple):
    why: str
    help: str
    command: str | None = None


def blocker(on: WaitingOn, execution: StoredExecution, now: datetime) -> Blocker:
    """Return what keeps an execution waiting in the end, and what would help."""
    who = ""
    while (cause := _cause(on)) is not None:
        on, who = cause.on, f"#{cause.ids[0]}" if cause.ids else who
    holders = [each if isinstance(each, int) else each.id for each in getattr(on, "holders", ())]
    said = _said(on, execution, who, now)
    return Blocker(
        why=said.why,
        held_by=holders[:NAMED_MAX],
        holders=len(holders),
        since=on.granted_at if isinstance(on, HandingOver) else getattr(on, "held_since", None),
        until=_until(on),
        help=said.help,
        command=said.command,
    )


def _cause(on: WaitingOn) -> RootCause | None:
    return on.root_cause if isinstance(on, WaitingOnLimit | WaitingOnTotal | WaitingOnResource) else None


def _until(on: WaitingOn) -> datetime | None:
    match on:
        case NotDue():
            return on.run_at
        case WaitingOnRate():
            return on.next_start_at
        case _:
            return None


def _said(on: WaitingOn, execution: StoredExecution, who: str, now: datetime) -> _Said:
    """Return the sentence; `who`: the holder that waits there, if it is not the execution itself."""
    ref = execution.action_ref
    match on:
        case WaitingOnPause():
            return _Said("the action is paused", "Resume it", f"executor actions resume {ref}")
        case WaitingOnLimit():
            return _at_limit(on, execution)
        case WaitingOnTotal() if on.closed is not None:
            return _Said("max_concurrent_total of the action is 0", "Raise it", _APPLY)
        case WaitingOnTotal():
            return _Said(_units(on, who), "Raise max_concurrent_total, or wait until a holder ends", _APPLY)
        case WaitingOnResource():
            return _at_resource(on, who)
        case WaitingOnRate():
            return _at_rate(on)
        case WaitingOnWorker():
            return _without_worker(on, who)
        case WaitingOnPool():
            return _in_pool(on)
        case NotDue():
            return _Said("not due yet", _NOTHING)
        case HandingOver():
            return _handed_over(on, execution, now)
        case OutOfReach():
            why = f"the executor cannot reach the {on.part}: {on.message}"
            return _Said(why, "Find out what fails, on the host of the executor", "executor doctor")
        case _:
            assert_never(on)


def _at_limit(on: WaitingOnLimit, execution: StoredExecution) -> _Said:
    command = f"executor actions limit {execution.action_ref} NUMBER"
    if on.limit_of == "key":
        key = quote(execution.concurrency_key or "")
        command = f"executor actions keys set {execution.action_ref} {key} --max-concurrent NUMBER"
    if on.max_concurrent == 0:
        return _Said(f"the limit of the {on.limit_of} is 0", "Raise it", command)
    why = f"{on.active_count} of {on.max_concurrent} slots in use"
    return _Said(why, f"Raise the limit of the {on.limit_of}, or wait until a holder ends", command)


def _at_resource(on: WaitingOnResource, who: str) -> _Said:
    name = on.gate.removeprefix("resource ")
    put = f"executor resources put {name} --capacity NUMBER"
    match on.closed:
        case "paused":
            return _Said(f"{on.gate} is paused", "Resume it", f"executor resources resume {name}")
        case "capacity_zero":
            return _Said(f"the capacity of {on.gate} is 0", "Raise it", put)
        case "capacity_too_low":
            why = f"{_needs(on, who)} of {on.gate}, whose capacity is {on.capacity}"
            return _Said(why, "Raise the capacity, or let the action use fewer units", put)
        case None:
            return _Said(_units(on, who), "Raise the capacity, or wait until a holder ends", put)


def _units(on: _Gate, who: str) -> str:
    gate = "the total of the action" if on.gate == "total" else on.gate
    free = "" if on.capacity is None else f", {on.free} of {on.capacity} free"
    ahead = ""
    if on.first is not None and on.free is not None and on.free >= on.units:
        ahead = f", but #{on.first.id} is ahead and needs {on.first.units}"
    return f"{_needs(on, who)} of {gate}{free}{ahead}"


def _needs(on: _Gate, who: str) -> str:
    units = "1 unit" if on.units == 1 else f"{on.units} units"
    return f"{who} needs {units}" if who else f"needs {units}"


def _at_rate(on: WaitingOnRate) -> _Said:
    owner, command = "the action", _APPLY
    if on.rate_of != "action":
        owner = on.rate_of
        command = f"executor resources put {owner.removeprefix('resource ')} --rate STARTS/TIME"
    why = f"the rate of {owner} allows {on.starts} starts per {format_duration(on.per_seconds)}"
    return _Said(why, "Raise the rate, or wait for the next start", command)


def _without_worker(on: WaitingOnWorker, who: str) -> _Said:
    of = f" of {who}" if who else ""
    why = f"no live worker in pool {on.pool} serves the action{of}"
    if not on.other_pools:
        return _Said(why, "Start one", _worker(on.pool))
    pools = ", ".join(on.other_pools)
    one = len(on.other_pools) == 1
    having = f"a worker in pool {pools} has it" if one else f"workers in the pools {pools} have it"
    helps = "Let a worker serve both pools, or change the pool of the action"
    return _Said(f"{why}, but {having}", helps, _worker(f"{on.other_pools[0]},{on.pool}"))


def _in_pool(on: WaitingOnPool) -> _Said:
    if on.closed is not None:
        return _Said(f"pool {on.pool} is paused", "Resume it", f"executor pools resume {on.pool}")
    if on.held < on.capacity:
        helps = "Give its action a weight, or wait for its turn"
        return _Said(
            f"not its turn yet in pool {on.pool}", helps, f"executor pools set {on.pool} --weight REF=NUMBER"
        )
    why = f"all {on.capacity} worker slots of pool {on.pool} are in use"
    return _Said(why, "Start more workers, or wait until a holder ends", _worker(on.pool))


def _worker(pools: str) -> str:
    return f"TURNSTILE_WORKER_POOLS={pools} worker serve --actions MODULE"


def _handed_over(on: HandingOver, execution: StoredExecution, now: datetime) -> _Said:
    worker, granted_at = execution.worker_id, on.granted_at
    if granted_at is None or (now - granted_at).total_seconds() < _UNSTARTED_SECONDS:
        return _Said("about to start at a worker", _NOTHING)
    why = f"granted to worker {worker}, which has a free slot and has not started it"
    return _Said(why, "See its log and its /readyz", f"executor workers show {worker}")
