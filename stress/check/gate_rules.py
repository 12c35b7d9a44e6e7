"""The rules of a recorded scenario with gates: units, order, rates, fair shares, and runs.

In: a `Recording`. `passages` replays what the installation has stored; the runs that the actions recorded
are a second witness of the units. Out: one finding for each rule.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turnstile.stress.check.columns import Ruling, Violation, ruling
from turnstile.stress.check.definitions import Definitions, pauses, recorded_history
from turnstile.stress.check.history import History
from turnstile.stress.check.passages import (
    RATE,
    Broken,
    GateHistory,
    Passer,
    Stay,
    capacity_of,
    check_passages,
)
from turnstile.stress.check.timelines import counted_runs
from turnstile.stress.check.verdict import Finding, Rule, findings_of
from turnstile.stress.recording import NONE, GateRecords, Recording
from turnstile.stress.trace import POOL, action_ref


def gates_kept(recording: Recording, time_text: Callable[[int], str]) -> list[Finding]:
    """Replay the gates of a scenario."""
    if recording.gates is None:
        return []
    replayed = check_passages(gate_history(recording, recording.gates))
    return findings_of(
        replayed.checked,
        ((each.rule, _sentence(each, time_text(each.at))) for each in replayed.broken),
    )


def _sentence(broken: Broken, when: str) -> str:
    who = "" if broken.execution_id is None else f", execution {broken.execution_id}"
    return f"at {broken.gate} at {when}{who}: {broken.what}"


def gate_history(recording: Recording, gates: GateRecords) -> GateHistory:
    """Return what the installation has stored of its gates."""
    definitions = Definitions(
        actions={ref: recorded_history(each) for ref, each in gates.actions.items()},
        resources={name: recorded_history(each) for name, each in gates.resources.items()},
        pools={} if recording.pool is None else {POOL: pauses(recorded_history(recording.pool))},
        settling_ns=gates.settling_ns,
    )
    return GateHistory(passers=list(_passers(recording, gates)), definitions=definitions)


def _passers(recording: Recording, gates: GateRecords) -> Iterator[Passer]:
    stays: dict[int, list[Stay]] = {}
    priorities: dict[int, int] = {}
    for execution_id, gate, units, arrived_at, passed_at, priority in recording.stays.tolist():
        stays.setdefault(execution_id, []).append(Stay(gates.names[gate], units, arrived_at, passed_at))
        priorities[execution_id] = priority
    granted_ats: dict[int, list[int]] = {}
    last = dict(
        zip(
            recording.executions["execution_id"].tolist(),
            recording.executions["attempt"].tolist(),
            strict=True,
        )
    )
    attempts = recording.attempts
    for execution_id, attempt, granted_at in zip(
        *(attempts[name].tolist() for name in ("execution_id", "attempt", "granted_at")), strict=True
    ):
        if attempt < last.get(execution_id, 0):
            granted_ats.setdefault(execution_id, []).append(granted_at)
    keys = max(recording.scenario.load.keys, 1)
    for row in recording.executions.tolist():
        execution_id, _, queue, _, attempt, created_at, completed_at = row
        if queue == NONE:
            continue
        action, key = divmod(queue, keys)
        yield Passer(
            execution_id=execution_id,
            action=action_ref(action),
            key=str(key) if recording.scenario.load.keys else None,
            priority=priorities.get(execution_id, 0),
            created_at=created_at,
            completed_at=completed_at,
            attempt=attempt,
            stays=tuple(stays.get(execution_id, ())),
            granted_ats=tuple(granted_ats.get(execution_id, ())),
        )


class _Held(NamedTuple):
    start: int
    end: int
    units: int
    passed_at: int
    row: int


def units_run(recording: Recording, history: History) -> Ruling:
    """Check each start of a run: the units of all that run fit the capacity since it passed the gate.

    An earlier attempt is not counted: what it passed is not stored.
    """
    assert recording.gates is not None
    stored = gate_history(recording, recording.gates)
    runs, counted = history.runs, counted_runs(history)
    last = {passer.execution_id: passer.attempt for passer in stored.passers}
    rows_of: dict[int, list[int]] = {}
    ids, attempts = runs["execution_id"].tolist(), runs["attempt"].tolist()
    for row, (execution_id, attempt) in enumerate(zip(ids, attempts, strict=True)):
        if last.get(execution_id) == attempt:
            rows_of.setdefault(execution_id, []).append(row)
    starts, ends = counted.starts.tolist(), counted.ends.tolist()
    broken: list[Violation] = []
    checked: set[int] = set()
    for gate, passages in stored.gates().items():
        if gate.gate == RATE:
            continue
        held = sorted(
            _Held(starts[row], ends[row], stay.units, stay.passed_at, row)
            for passer, stay in passages
            for row in rows_of.get(passer.execution_id, ())
        )
        checked.update(each.row for each in held)
        for each, running in _running(held):
            since = each.passed_at - stored.definitions.settling_ns
            versions = stored.own(gate).possible(since, each.start + history.tolerance_ns)
            capacities = [capacity_of(version, gate) for version in versions]
            highest = max((capacity for capacity in capacities if capacity is not None), default=0)
            if None not in capacities and running > highest:
                what = (
                    f"execution {ids[each.row]} started at {history.time_text(each.start)} with {gate}:"
                    f" {running} units were running, the capacity was {highest}"
                )
                broken.append(Violation(what, ids[each.row]))
    return ruling(Rule.LIMIT_RUN, len(checked), broken)


def _running(held: list[_Held]) -> Iterator[tuple[_Held, int]]:
    """Yield each start with the units that run then, its own included."""
    running = 0
    ends: list[tuple[int, int]] = []
    for each in held:
        while ends and ends[0][0] <= each.start:
            running -= heapq.heappop(ends)[1]
        running += each.units
        heapq.heappush(ends, (each.end, each.units))
        yield each, running
