"""`python -m tests.unit.stress.check_size 1000000`: measures the check and the metrics of so many executions.

In: a number of executions. Out: one line of JSON: seconds, CPU seconds, peak memory, and the violations. The
recording is many copies of a small correct one.
"""

import json
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.system import peak_memory_mb
from tests.unit.stress.histories import MILLISECOND, Plan, enlarged, lawful
from turnstile.stress.check.rules import check_recording
from turnstile.stress.metrics.scenario import measure_scenario

SMALL = Plan(executions=20_000, actions=2, keys=100, limit=2, killed_at=15_000 * MILLISECOND)


def main(arguments: Sequence[str]) -> None:
    recording = enlarged(lawful(SMALL), max(int(arguments[0]) // SMALL.executions, 1))
    began, began_cpu = time.perf_counter(), time.process_time()
    verdict = check_recording(recording)
    checked = time.perf_counter()
    metrics = measure_scenario(recording)
    measured, measured_cpu = time.perf_counter(), time.process_time()
    measurements = {
        "executions": metrics.ended,
        "queues": recording.scenario.load.queues,
        "check_seconds": round(checked - began, 2),
        "measure_seconds": round(measured - checked, 2),
        "cpu_seconds": round(measured_cpu - began_cpu, 2),
        # Not `ru_maxrss`, which a child inherits from its parent.
        "memory_mb": round(peak_memory_mb(os.getpid())),
        "broken": [finding.examples for finding in verdict.broken],
    }
    print(json.dumps(measurements))


if __name__ == "__main__":
    main(sys.argv[1:])
