"""`python -m tests.unit.stress.check_size 1000000`: what judging and measuring so many executions takes.

In: a number of executions. Out: one line of JSON: seconds, those of the processor, the most memory that the
process ever had, and what was broken, which is nothing. The history is a small lawful one, many times over.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.machine import peak_memory_mb
from tests.unit.stress.histories import MILLISECOND, Plan, lawful
from turnstile.stress.check.judge import judge
from turnstile.stress.figures.measure import measure
from turnstile.stress.recording import Recording
from turnstile.stress.tables import Table

SMALL = Plan(executions=20_000, actions=2, keys=100, limit=2, killed_at=15_000 * MILLISECOND)


def enlarged(small: Recording, times: int) -> Recording:
    """Return the recording of so many copies side by side, each with actions and executions of its own."""
    load, executions = small.stage.load, len(small.orders)
    ids = int(small.executions["execution_id"].max())
    steps = {"queue": load.queues, "number": executions, "execution_id": ids, "process": 10}
    load = replace(load, executions=executions * times, actions=load.actions * times)
    return replace(
        small,
        stage=replace(small.stage, load=load),
        orders=_tiled(small.orders, times, steps),
        executions=_tiled(small.executions, times, steps),
        attempts=_tiled(small.attempts, times, steps),
        runs=_tiled(small.runs, times, steps),
        counters=small.counters * times,
    )


def _tiled(table: Table, times: int, steps: dict[str, int]) -> Table:
    tiled = np.tile(table, times)
    copies = np.repeat(np.arange(times), len(table))
    for name in steps.keys() & set(table.dtype.names or ()):
        tiled[name] += (copies * steps[name]).astype(tiled[name].dtype)
    return tiled


def main(arguments: Sequence[str]) -> None:
    recording = enlarged(lawful(SMALL), max(int(arguments[0]) // SMALL.executions, 1))
    began, began_cpu = time.perf_counter(), time.process_time()
    verdict = judge(recording)
    judged = time.perf_counter()
    figures = measure(recording)
    measured, measured_cpu = time.perf_counter(), time.process_time()
    said = {
        "executions": figures.ended,
        "queues": recording.stage.load.queues,
        "judge_seconds": round(judged - began, 2),
        "measure_seconds": round(measured - judged, 2),
        "cpu_seconds": round(measured_cpu - began_cpu, 2),
        # Not `ru_maxrss`, which a child inherits from whoever started it.
        "memory_mb": round(peak_memory_mb(os.getpid())),
        "broken": [finding.examples for finding in verdict.broken],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
