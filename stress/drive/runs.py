"""Which attempts really ran, and when, by what the actions wrote themselves.

In: the marks of each process, and when processes were known to be gone. Out: rows of RUN. A start without a
stop was cut off with its process, if anybody saw that die; else nothing is known of its end.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.mark_files import ProcessMarks
from turnstile.stress.marks import START, STOP
from turnstile.stress.tables import NEVER, NONE, RUN, RunEnd, Table, empty

_OCCURRENCES_MAX: Final = 1 << 24


def runs_marked(
    processes: Sequence[ProcessMarks], clock: Clock, deaths: Mapping[int, int], executions: Table
) -> Table:
    """Return rows of RUN; those of executions that are not in the table have no number."""
    tables = [np.empty(0, RUN)]
    for number, process in enumerate(processes):
        starts, stopped_at = _pair(process.marks)
        runs = empty(RUN, len(starts))
        runs["process"] = number
        runs["execution_id"] = starts["execution_id"]
        runs["attempt"] = starts["attempt"]
        runs["started_at"] = starts["at"] + clock.offset_ns
        stopped = stopped_at != NEVER
        runs["stopped_at"][stopped] = stopped_at[stopped] + clock.offset_ns
        runs["end"] = np.where(stopped, RunEnd.STOPPED, RunEnd.UNKNOWN)
        died_at = deaths.get(process.pid, NONE)
        killed = ~stopped & (runs["started_at"] <= died_at)
        runs["stopped_at"][killed] = died_at
        runs["end"][killed] = RunEnd.KILLED
        tables.append(runs)
    runs = np.concatenate(tables)
    _name(runs, executions)
    return runs


def _pair(marks: Table) -> tuple[Table, NDArray[np.int64]]:
    """Return each start, and the instant of its stop or NEVER.

    The n-th stop of an attempt is of its n-th start: should one ever run twice, both runs must show.
    """
    ordered = marks[np.lexsort((marks["attempt"], marks["execution_id"]))]
    starts, start_keys = _nth(ordered, START)
    stops, stop_keys = _nth(ordered, STOP)
    stopped_at = np.full(len(starts), NEVER, np.int64)
    places = np.searchsorted(stop_keys, start_keys)
    within = places < len(stops)
    found = np.flatnonzero(within)[stop_keys[places[within]] == start_keys[within]]
    stopped_at[found] = stops["at"][places[found]]
    return starts, stopped_at


def _nth(ordered: Table, kind: int) -> tuple[Table, NDArray[np.int64]]:
    """Return the marks of a kind, and for each a number made of its attempt and how many came before."""
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = (np.diff(ordered["execution_id"]) != 0) | (np.diff(ordered["attempt"]) != 0)
    group = np.cumsum(fresh) - 1
    is_kind = ordered["kind"] == kind
    before = np.cumsum(is_kind) - is_kind
    nth = before - before[np.flatnonzero(fresh)][group]
    return ordered[is_kind], (group * _OCCURRENCES_MAX + nth)[is_kind]


def _name(runs: Table, executions: Table) -> None:
    """Fill in order and queue from the record."""
    places = np.searchsorted(executions["execution_id"], runs["execution_id"])
    known = places < len(executions)
    known[known] = executions["execution_id"][places[known]] == runs["execution_id"][known]
    runs["number"][known] = executions["number"][places[known]]
    runs["queue"][known] = executions["queue"][places[known]]
