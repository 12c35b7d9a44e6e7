"""The queues of a recording as gates: its tables as moves, what excuses idle slots, and the findings.

The history shows a slot as held until the end of its attempt; in truth it is free only when that end has been
settled. So every broken limit found here is real. Settling takes milliseconds, unless a message was lost:
then the watchdog publishes the end again after the settle timeout. So faults that lose messages excuse idle
slots for longer than others. During an outage, and until the system has settled, idle slots are excused.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, assert_never

import numpy as np

from turnstile.stress.check.gates import IdleAllowance, Move, Step, replayed
from turnstile.stress.check.limits import limit_timeline
from turnstile.stress.check.timelines import queue_entries
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.recording import NEVER, SECOND, Instants, Recording
from turnstile.stress.scenario import FaultKind

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two connection attempts, plus an attempt."""
_SETTLING_NS: Final = 13 * SECOND
"""The settle timeout (10 s), the next tick, and a margin."""
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
    for queue in replayed(queue_moves(recording), until=recording.ended_at, allowance=allowance):
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


def queue_moves(recording: Recording) -> Iterator[Move]:
    """Yield what the tables say of each queue."""
    entries = queue_entries(recording)
    granted = np.flatnonzero(entries.granted_at != NEVER)
    freed = np.flatnonzero((entries.granted_at != NEVER) & (entries.ended_at != NEVER))
    every = np.unique(entries.queues)
    limits = limit_timeline(recording)
    edges = limits.breakpoints()
    # Both limits apply at the instant of a change.
    queues, at = np.concatenate([edges[0], edges[0]]), np.concatenate([edges[1], edges[1] + 1])
    always = np.full(len(every), -NEVER, np.int64)
    queues, at = np.concatenate([every, queues]), np.concatenate([always, at])
    parts: list[tuple[Step, Instants, Instants, Instants]] = [
        (
            Step.FREED,
            entries.queues[freed],
            np.maximum(entries.ended_at[freed], entries.granted_at[freed] + 1),
            entries.execution_ids[freed],
        ),
        (Step.AT_LEAST, queues, at, limits.lowest(queues, at)),
        (Step.AT_MOST, queues, at, limits.highest(queues, at, at)),
        (
            Step.ARRIVED,
            entries.queues,
            np.minimum(entries.since, entries.granted_at),
            entries.execution_ids,
        ),
        (
            Step.GRANTED,
            entries.queues[granted],
            entries.granted_at[granted],
            entries.execution_ids[granted],
        ),
    ]
    steps = np.repeat([step for step, *_ in parts], [len(instants) for _, _, instants, _ in parts])
    queues, at, values = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:])
    order = np.lexsort((steps, at, queues))
    for first in range(0, len(order), _CHUNK):
        rows = order[first : first + _CHUNK]
        yield from map(Move, *(values[rows].tolist() for values in (queues, at, steps, values)))


def excused(recording: Recording) -> list[tuple[int, int]]:
    """Return the periods in which idle slots are excused, in the order of beginnings."""
    opened_at = [] if recording.opened_at == NEVER else [(-NEVER, recording.opened_at)]
    faults = [
        (fault.began_at, min(fault.healed_at, NEVER - _SETTLING_NS) + settling_ns)
        for fault in recording.faults
        if (settling_ns := _settling_ns(fault.kind)) is not None
    ]
    return sorted(opened_at + faults)


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
