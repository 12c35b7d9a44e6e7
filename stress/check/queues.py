"""The queues of a recording as gates: its tables as moves, what excuses idle slots, and the findings.

The history shows a slot as held until the end of its attempt; in truth it is free only when that end has been
committed. So every broken limit found here is real. During an outage, and until the system has settled, idle
slots are excused. So they are while executions hold the whole capacity of the workers.

What a worker was granted beyond the limit, in a run, has no slot yet: it takes the next one there that
becomes free. So a queue may hold more than its limit at one worker, and nowhere else.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.check.excuses import disturbed, merged
from turnstile.stress.check.gates import (
    ANYWHERE,
    UNLIMITED,
    Broken,
    GateStep,
    IdleAllowance,
    Move,
    replayed,
)
from turnstile.stress.check.history import History
from turnstile.stress.check.limits import ALWAYS, LimitTimeline, limit_timeline
from turnstile.stress.check.timelines import QueueEntries, counted_runs, queue_entries
from turnstile.stress.check.verdict import Finding, Rule, findings_of
from turnstile.stress.recording import NEVER, NONE, SECOND, Instants, Outcome, Recording, RunEnd, Table

_SHARING_NS: Final = SECOND
"""Worker slots are shared some at a time, once the ends of executions are committed."""
_MOVE: Final = np.dtype([("gate", "i4"), ("at", "i8"), ("step", "i1"), ("value", "i8"), ("worker", "i4")])
_CHUNK: Final = 50_000
"""Moves that are in memory as objects at once."""


def queues_kept(recording: Recording, history: History) -> list[Finding]:
    """Check each grant and each slot that is free while an execution waits.

    At each grant a queue holds at most its limit, or all that it holds is at one worker, and no execution
    with a smaller id waits. A free slot is granted, and its worker uses it, within the allowed time. Slots
    that are free before paused actions are resumed do not count.
    """
    allowance = IdleAllowance(seconds=recording.idle_allowed_seconds, excused=excused(recording))
    entries = queue_entries(recording)
    moves = moves_of_entries(entries, history.limits)
    queues = replayed(moves, until=recording.ended_at, allowance=allowance)
    at_leader = chain.from_iterable(queue.broken for queue in queues)
    at_workers = idle_at_workers(history, recording.idle_allowed_seconds, until=recording.ended_at)
    rules = (Rule.LIMIT_HELD, Rule.GRANTED_IN_ORDER, Rule.NO_IDLE_SLOT)
    return findings_of(
        dict.fromkeys(rules, int((entries.granted_at != NEVER).sum())),
        (
            (each.rule, f"in queue {each.gate} at {history.time_text(each.at)}: {each.what}")
            for each in chain(at_leader, at_workers)
        ),
    )


def moves_of_entries(entries: QueueEntries, limits: LimitTimeline) -> Iterator[Move]:
    """Yield these stays, their slots and the limits."""
    since = np.minimum(entries.since, entries.granted_at)
    return _in_order(
        limits,
        _Part(GateStep.ARRIVED, entries.queues, since, entries.execution_ids),
        *_held(entries.queues, entries.granted_at, entries.ended_at, entries.execution_ids, entries.workers),
    )


def run_moves(history: History) -> Iterator[Move]:
    """Yield the runs of each queue as held slots; a run has the value `~row`."""
    counted, rows = counted_runs(history), np.flatnonzero(history.runs["queue"] != NONE)
    queues = column(history.runs, "queue")[rows]
    return _in_order(history.limits, *_held(queues, counted.starts[rows], counted.ends[rows], ~rows))


class _Part(NamedTuple):
    """Moves of one kind, as columns."""

    step: GateStep
    queues: Instants
    at: Instants
    values: Instants
    workers: Instants | int = ANYWHERE


def _held(
    queues: Instants, starts: Instants, ends: Instants, values: Instants, workers: Instants | int = ANYWHERE
) -> list[_Part]:
    # What ends with its start, or before it, counts for its start only.
    ends = np.where(ends == NEVER, NEVER, np.maximum(ends, np.minimum(starts, NEVER - 1) + 1))
    return [
        _Part(GateStep.GRANTED, queues, starts, values, workers),
        _Part(GateStep.FREED, queues, ends, values),
    ]


def _in_order(limits: LimitTimeline, *parts: _Part) -> Iterator[Move]:
    """Yield the moves of these queues and of their limits; what has not happened is left out."""
    every = np.unique(np.concatenate([part.queues for part in parts])).tolist()
    limited = [move for queue in every for move in limits.moves(queue)]
    tables = [np.array(limited, _MOVE)]
    for part in parts:
        happened = part.at != NEVER
        table = np.empty(len(part.at), _MOVE)
        table["gate"], table["at"], table["step"] = part.queues, part.at, part.step
        table["value"], table["worker"] = part.values, part.workers
        tables.append(table[happened])
    moves = np.concatenate(tables)
    return _read(moves, np.lexsort((moves["step"], moves["at"], moves["gate"])))


def _read(moves: Table, order: Instants) -> Iterator[Move]:
    for first in range(0, len(order), _CHUNK):
        yield from map(Move._make, moves[order[first : first + _CHUNK]].tolist())


def idle_at_workers(history: History, seconds: float, *, until: int) -> Iterator[Broken]:
    """Yield the slots that a worker left free for longer, while it had an execution that could use them.

    It has what it was granted and has not started. It has a free slot while it runs fewer of the queue than
    the limit, and fewer than it ran at once at some time. What may have started counts as running.
    """
    attempts, starts = history.attempts, history.worker_starts
    most = _most_at_once(history)
    workers, granted_at = column(attempts, "worker"), column(attempts, "granted_at")
    ended_at, is_known = column(attempts, "ended_at"), starts != NEVER
    waits = is_known | (attempts["outcome"] == Outcome.OPEN)
    began_at = np.where(waits, np.maximum(starts, granted_at), granted_at)
    in_queue = (attempts["queue"] != NONE) & (granted_at != NEVER)
    for worker in np.unique(workers[workers != NONE]).tolist():
        own = np.flatnonzero(in_queue & (workers == worker))
        full = _periods_of(began_at[own], ended_at[own], most.get(worker, 0), until)
        excused = merged([*history.disturbed, *full])
        allowance = IdleAllowance(seconds=seconds, excused=excused, exact=True)
        queues, ids = column(attempts, "queue")[own], column(attempts, "execution_id")[own]
        moves = _in_order(
            history.limits,
            _Part(GateStep.ARRIVED, queues, np.where(waits, granted_at, NEVER)[own], ids),
            *_held(queues, began_at[own], ended_at[own], ids),
        )
        for queue in replayed(moves, until=until, allowance=allowance):
            yield from (
                broken._replace(what=f"at worker {worker}, {broken.what}")
                for broken in queue.broken
                if broken.rule is Rule.NO_IDLE_SLOT
            )


def _most_at_once(history: History) -> Mapping[int, int]:
    """Return for each worker how many runs it had at once at most, by their own records."""
    runs = history.runs[history.runs["end"] == RunEnd.STOPPED]
    rows = rows_of(attempt_keys(history.attempts), attempt_keys(runs))
    workers = values_at(column(history.attempts, "worker"), rows, NONE)
    found = {}
    for worker in np.unique(workers[workers != NONE]).tolist():
        own = runs[workers == worker]
        times = np.concatenate([column(own, "stopped_at"), column(own, "started_at")])
        steps = np.repeat([-1, 1], len(own))
        found[worker] = int(np.cumsum(steps[np.argsort(times, kind="stable")]).max())
    return found


def excused(recording: Recording) -> list[tuple[int, int]]:
    """Return the periods in which idle slots are excused, in the order of beginnings."""
    return merged(disturbed(recording) + occupied(recording))


def occupied(recording: Recording) -> list[tuple[int, int]]:
    """Return when executions held the whole capacity of the workers: until their ends are committed."""
    if not recording.worker_capacity:
        return []
    limits = limit_timeline(recording)
    return held_by(recording.attempts, limits, recording.worker_capacity, recording.ended_at)


def held_by(attempts: Table, limits: LimitTimeline, capacity: int, until_at: int) -> list[tuple[int, int]]:
    """Return when attempts held so many slots, or more: of a queue, at most the highest limit that it had."""
    queues, steps = np.tile(column(attempts, "queue"), 2), np.repeat([1, -1], len(attempts))
    times = np.concatenate([column(attempts, "granted_at"), column(attempts, "ended_at")])
    happened = times != NEVER
    queues, times, steps = queues[happened], times[happened], steps[happened]
    order = np.lexsort((times, queues))
    queues, times = queues[order], times[order]
    held = np.cumsum(steps[order])
    # Every queue begins with nothing: what others hold at their ends is taken off.
    every, first, of_row = np.unique(queues, return_index=True, return_inverse=True)
    held -= np.concatenate([[0], held])[first][of_row]
    highest = [
        UNLIMITED if queue == NONE else limits.highest(queue, ALWAYS, NEVER) for queue in every.tolist()
    ]
    held = np.minimum(held, np.array(highest, np.int64)[of_row])
    before = np.concatenate([[0], held[:-1]])
    before[first] = 0
    in_time = np.argsort(times, kind="stable")
    return _full(times[in_time], np.cumsum((held - before)[in_time]), capacity, until_at, _SHARING_NS)


def _periods_of(starts: Instants, ends: Instants, capacity: int, until_at: int) -> list[tuple[int, int]]:
    """Return when so many of these intervals, or more, were open."""
    times, steps = np.concatenate([starts, ends]), np.repeat([1, -1], len(starts))
    order = np.argsort(times[times != NEVER], kind="stable")
    held = np.cumsum(steps[times != NEVER][order])
    return _full(times[times != NEVER][order], held, capacity, until_at, 0)


def _full(
    times: Instants, held: Instants, capacity: int, until_at: int, longer_ns: int
) -> list[tuple[int, int]]:
    full = np.flatnonzero(held >= capacity)
    until = np.append(times, until_at)[full + 1] + longer_ns
    return merged(zip(times[full].tolist(), until.tolist(), strict=True))
