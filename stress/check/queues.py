"""The queues of a recording as gates: its tables as moves, what excuses idle slots, and the findings.

The history shows a slot as held until the end of its attempt; in truth it is free only when that end has been
committed. So every broken limit found here is real. A commit takes milliseconds, unless a report was lost:
then the worker sends it again some seconds later. So faults that lose messages excuse idle
slots for longer than others. During an outage, and until the system has settled, idle slots are excused. So
they are while executions hold the whole capacity of the workers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias, assert_never

import numpy as np

from turnstile.stress.check.columns import column
from turnstile.stress.check.gates import GateStep, IdleAllowance, Move, replayed
from turnstile.stress.check.history import History
from turnstile.stress.check.limits import LimitTimeline, limit_timeline
from turnstile.stress.check.timelines import QueueEntries, counted_runs, queue_entries
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.recording import NEVER, NONE, SECOND, Instants, Recording, Table
from turnstile.stress.scenario import FaultKind

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two connection attempts, plus an attempt."""
_SETTLING_NS: Final = 13 * SECOND
"""The longest time until a lost report is sent again and committed, and a margin."""
_SHARING_NS: Final = SECOND
"""Worker slots are shared some at a time, once the ends of executions are committed."""
_MOVE: Final = np.dtype([("gate", "i4"), ("at", "i8"), ("step", "i1"), ("value", "i8")])
_CHUNK: Final = 50_000
"""Moves that are in memory as objects at once."""


def queues_kept(recording: Recording, time_text: Callable[[int], str]) -> tuple[Finding, Finding, Finding]:
    """Check each grant and each slot that is free while an execution waits.

    With each grant, a queue holds no more slots than the limit in force, and no execution with a smaller id
    waits. A free slot is granted within the allowed time; before paused actions are resumed, none counts.
    """
    examples: dict[Rule, list[str]] = {
        rule: [] for rule in (Rule.LIMIT_HELD, Rule.GRANTED_IN_ORDER, Rule.NO_IDLE_SLOT)
    }
    counts: Counter[Rule] = Counter()
    allowance = IdleAllowance(seconds=recording.idle_allowed_seconds, excused=excused(recording))
    granted = 0
    for queue in replayed(slot_moves(recording), until=recording.ended_at, allowance=allowance):
        granted += len(queue.granted)
        for broken in queue.broken:
            counts[broken.rule] += 1
            if counts[broken.rule] <= EXAMPLES_MAX:
                text = f"in queue {broken.gate} at {time_text(broken.at)}: {broken.what}"
                examples[broken.rule].append(text)
    limit, order, idle = (
        Finding(rule=rule, checked=granted, broken=counts[rule], examples=tuple(found))
        for rule, found in examples.items()
    )
    return limit, order, idle


def slot_moves(recording: Recording) -> Iterator[Move]:
    """Yield the stays in each queue, and the slots from their grants to the ends of their attempts."""
    return moves_of_entries(queue_entries(recording), limit_timeline(recording))


def moves_of_entries(entries: QueueEntries, limits: LimitTimeline) -> Iterator[Move]:
    """Yield these stays, their slots and the limits."""
    return _in_order(
        limits,
        (
            GateStep.ARRIVED,
            entries.queues,
            np.minimum(entries.since, entries.granted_at),
            entries.execution_ids,
        ),
        *_held(entries.queues, entries.granted_at, entries.ended_at, entries.execution_ids),
    )


def run_moves(history: History, waiting: QueueEntries | None = None) -> Iterator[Move]:
    """Yield the runs of each queue as held slots, and the stays in it; a run has the value `~row`."""
    counted, rows = counted_runs(history), np.flatnonzero(history.runs["queue"] != NONE)
    parts = _held(column(history.runs, "queue")[rows], counted.starts[rows], counted.ends[rows], ~rows)
    if waiting is not None:
        parts += [
            (GateStep.ARRIVED, waiting.queues, waiting.since, waiting.execution_ids),
            (GateStep.LEFT, waiting.queues, waiting.granted_at, waiting.execution_ids),
        ]
    return _in_order(history.limits, *parts)


_Part: TypeAlias = tuple[GateStep, Instants, Instants, Instants]


def _held(queues: Instants, starts: Instants, ends: Instants, values: Instants) -> list[_Part]:
    # What ends with its start, or before it, counts for its start only.
    ends = np.where(ends == NEVER, NEVER, np.maximum(ends, np.minimum(starts, NEVER - 1) + 1))
    return [(GateStep.GRANTED, queues, starts, values), (GateStep.FREED, queues, ends, values)]


def _in_order(limits: LimitTimeline, *parts: _Part) -> Iterator[Move]:
    """Yield the moves of these queues and of their limits; what has not happened is left out."""
    every = np.unique(np.concatenate([queues for _, queues, _, _ in parts])).tolist()
    limited = [move for queue in every for move in limits.moves(queue)]
    tables = [np.array(limited, _MOVE)]
    for step, queues, at, values in parts:
        happened = at != NEVER
        table = np.empty(np.count_nonzero(happened), _MOVE)
        table["gate"], table["at"], table["step"] = queues[happened], at[happened], step
        table["value"] = values[happened]
        tables.append(table)
    moves = np.concatenate(tables)
    return _read(moves, np.lexsort((moves["step"], moves["at"], moves["gate"])))


def _read(moves: Table, order: Instants) -> Iterator[Move]:
    for first in range(0, len(order), _CHUNK):
        yield from map(Move._make, moves[order[first : first + _CHUNK]].tolist())


def excused(recording: Recording) -> list[tuple[int, int]]:
    """Return the periods in which idle slots are excused, in the order of beginnings."""
    return merged(disturbed(recording) + occupied(recording))


def disturbed(recording: Recording) -> list[tuple[int, int]]:
    """Return the periods before paused actions were resumed and of faults, until the system has settled."""
    opened_at = [] if recording.opened_at == NEVER else [(-NEVER, recording.opened_at)]
    faults = [
        (fault.began_at, min(fault.healed_at, NEVER - _SETTLING_NS) + settling_ns)
        for fault in recording.faults
        if (settling_ns := _settling_ns(fault.kind)) is not None
    ]
    return merged(opened_at + faults)


def occupied(recording: Recording) -> list[tuple[int, int]]:
    """Return when executions held the whole capacity of the workers: until their ends are committed."""
    if not recording.worker_capacity:
        return []
    return held_by(recording.attempts, recording.worker_capacity, recording.ended_at)


def held_by(attempts: Table, capacity: int, until_at: int) -> list[tuple[int, int]]:
    """Return when so many attempts, or more, held slots."""
    times = np.concatenate([column(attempts, "granted_at"), column(attempts, "ended_at")])
    steps = np.repeat([1, -1], len(attempts))
    happened = times != NEVER
    order = np.argsort(times[happened], kind="stable")
    times, held = times[happened][order], np.cumsum(steps[happened][order])
    full = np.flatnonzero(held >= capacity)
    until = np.append(times, until_at)[full + 1] + _SHARING_NS
    return merged(zip(times[full].tolist(), until.tolist(), strict=True))


def merged(periods: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the periods as such that do not overlap, in their order."""
    found: list[tuple[int, int]] = []
    for since, until in sorted(periods):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((since, until))
    return found


def _settling_ns(kind: FaultKind) -> int | None:
    match kind:
        case FaultKind.CHANGE_LIMIT:
            # Not an outage.
            return None
        case FaultKind.KILL_EXECUTOR | FaultKind.PAUSE_EXECUTOR | FaultKind.RESTART_DATABASE:
            return _RECONNECTING_NS
        case (
            FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER | FaultKind.RESTART_BROKER | FaultKind.PURGE_QUEUES
        ):
            return _SETTLING_NS
        case _:
            assert_never(kind)
