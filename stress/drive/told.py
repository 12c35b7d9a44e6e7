"""What actions on any host told of their runs in their results.

In: results in the record. Out: rows of RUN on the scale of this host's clock. Differences on one host are
exact; between hosts they are as good as their wall clocks are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Final

import numpy as np

from turnstile.stress.api import Json
from turnstile.stress.drive.clock import Clock
from turnstile.stress.tables import RUN, RunEnd, Table

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRun:
    """One run that ended, by the monotonic clock of its host."""

    number: int
    execution_id: int
    attempt: int
    queue: int
    boot: str
    """Of its host: each has a monotonic clock of its own."""
    process: int
    offset_ns: int
    """From that clock to its host's wall clock."""
    started_ns: int
    stopped_ns: int


def told_run(item: Json, *, number: int, queue: int) -> list[ToldRun]:
    """Return the run that an execution's result tells of, or nothing where it tells of none."""
    result = item["result"]
    try:
        return [
            ToldRun(
                number=number,
                execution_id=item["id"],
                attempt=item["attempt"],
                queue=queue,
                boot=str(result["boot"]),
                process=int(result["process"]),
                offset_ns=int(result["offset"]),
                started_ns=int(result["started"]),
                stopped_ns=int(result["stopped"]),
            )
        ]
    except (KeyError, TypeError, ValueError):
        # Of another version of the actions: the check will miss the run.
        return []


def runs_told(told: Sequence[ToldRun], clock: Clock, *, processes_before: int) -> Table:
    """Return rows of RUN; processes are numbered from `processes_before`."""
    offsets = _offsets(told, clock)
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
            for run in told
        ],
        RUN,
    )


def all_here(told: Sequence[ToldRun]) -> bool:
    """Whether all of them ran on this host."""
    return {run.boot for run in told} <= {_boot_id()}


def _offsets(told: Sequence[ToldRun], clock: Clock) -> dict[str, int]:
    """Return one offset for each host, so that what one host says keeps its distances."""
    said: dict[str, list[int]] = {}
    for run in told:
        said.setdefault(run.boot, []).append(run.offset_ns)
    offsets = {boot: median_low(each) for boot, each in said.items()}
    return offsets | {_boot_id(): clock.offset_ns}


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
