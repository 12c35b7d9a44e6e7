"""When attempts really ran, as recorded by the actions: in trace files on this host, or in their results.

In: trace records of each process, exits of processes, results in the history. Out: rows of RUN. A start
without a stop ended with its process if the exit was observed; otherwise its end is unknown. Times of one
host are exact; times of different hosts are as accurate as their wall clocks.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.columns import column, rows_of, values_at
from turnstile.stress.drive.pacing import Clock
from turnstile.stress.installation import Json
from turnstile.stress.recording import NEVER, NONE, RUN, RunEnd, Table, empty
from turnstile.stress.trace import RECORD, START, TRACE_SUFFIX, boot_id

TRACE: Final = np.dtype(
    [("at", "<i8"), ("number", "<i8"), ("execution_id", "<i8"), ("attempt", "<i4"), ("kind", "<i4")]
)
"""A trace record; `at` is in monotonic nanoseconds."""
assert TRACE.itemsize == RECORD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrace:
    """The trace records of one process, in the order of writing."""

    pid: int
    records: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFolder:
    """The trace folder with the file sizes at the beginning of a scenario; workers outlive scenarios."""

    folder: Path
    sizes_bytes: Mapping[str, int]

    @classmethod
    def now(cls, folder: Path) -> Self:
        """Note the size of each file."""
        return cls(folder=folder, sizes_bytes={path.name: path.stat().st_size for path in _files(folder)})

    def read(self) -> list[ProcessTrace]:
        """Return the records since then; a process without any is left out."""
        found = []
        for path in _files(self.folder):
            before = self.sizes_bytes.get(path.name, 0)
            count = (path.stat().st_size - before) // TRACE.itemsize
            if count:
                records = np.fromfile(path, TRACE, count, offset=before)
                found.append(ProcessTrace(pid=int(path.name.partition("-")[0]), records=records))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """A run from the result of an execution, on the monotonic clock of its host."""

    number: int
    execution_id: int
    attempt: int
    queue: int
    boot: str
    """The boot id of its host, which has a monotonic clock of its own."""
    process: int
    offset_ns: int
    """From that clock to the wall clock of the host."""
    started_ns: int
    stopped_ns: int


def traced_runs(
    processes: Sequence[ProcessTrace], clock: Clock, exits: Mapping[int, int], executions: Table
) -> Table:
    """Return rows of RUN; runs of unknown executions have no number."""
    tables = [np.empty(0, RUN)]
    for number, process in enumerate(processes):
        starts, stopped_at = _pair(process.records)
        runs = empty(RUN, len(starts))
        runs["process"] = number
        runs["execution_id"] = starts["execution_id"]
        runs["attempt"] = starts["attempt"]
        runs["started_at"] = starts["at"] + clock.offset_ns
        stopped = stopped_at != NEVER
        runs["stopped_at"][stopped] = stopped_at[stopped] + clock.offset_ns
        runs["end"] = np.where(stopped, RunEnd.STOPPED, RunEnd.UNKNOWN)
        exited_at = exits.get(process.pid, NONE)
        killed = ~stopped & (runs["started_at"] <= exited_at)
        runs["stopped_at"][killed] = exited_at
        runs["end"][killed] = RunEnd.KILLED
        tables.append(runs)
    runs = np.concatenate(tables)
    rows = rows_of(column(executions, "execution_id"), column(runs, "execution_id"))
    for name in ("number", "queue"):
        runs[name] = values_at(column(executions, name), rows, NONE)
    return runs


def remote_run(item: Json, *, number: int, queue: int) -> RemoteRun:
    """Return the run in the result of an execution, which an action of this version wrote."""
    result = item["result"]
    return RemoteRun(
        number=number,
        execution_id=item["id"],
        attempt=item["attempt"],
        queue=queue,
        boot=result["boot"],
        process=result["process"],
        offset_ns=result["offset"],
        started_ns=result["started"],
        stopped_ns=result["stopped"],
    )


def remote_runs(remote: Sequence[RemoteRun], clock: Clock, *, processes_before: int) -> Table:
    """Return rows of RUN; processes are numbered from `processes_before`."""
    # One offset for each host, so that times of one host keep their distances.
    samples: dict[str, list[int]] = {}
    for run in remote:
        samples.setdefault(run.boot, []).append(run.offset_ns)
    offsets = {boot: median_low(each) for boot, each in samples.items()} | {boot_id(): clock.offset_ns}
    processes: dict[tuple[str, int], int] = {}
    return np.array(
        [
            (
                run.number,
                run.execution_id,
                run.attempt,
                run.queue,
                processes_before + processes.setdefault((run.boot, run.process), len(processes)),
                run.started_ns + offsets[run.boot],
                run.stopped_ns + offsets[run.boot],
                RunEnd.STOPPED,
            )
            for run in remote
        ],
        RUN,
    )


def all_on_this_host(remote: Sequence[RemoteRun]) -> bool:
    """Whether all of them ran on this host."""
    return {run.boot for run in remote} <= {boot_id()}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{TRACE_SUFFIX}"))


def _pair(records: Table) -> tuple[Table, NDArray[np.int64]]:
    """Return each start, and the instant of its stop or NEVER.

    Stop n of an attempt belongs to its start n: an attempt that runs twice must show as two runs.
    """
    starts = records[records["kind"] == START]
    stopped_at = np.full(len(starts), NEVER, np.int64)
    running: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    started = 0
    for at, _, execution_id, attempt, kind in records.tolist():
        if kind == START:
            running[execution_id, attempt].append(started)
            started += 1
        elif running[execution_id, attempt]:
            stopped_at[running[execution_id, attempt].popleft()] = at
    return starts, stopped_at
