"""A long run is judged in a moment: a fifth of the size that is promised, in a fifth of the bounds."""

import json
import subprocess
import sys

EXECUTIONS = 200_000
SECONDS = 60 / 5
MEMORY_MB = 1_000 / 2
"""Half: libraries take theirs whatever the size."""


def test_many_executions_are_judged_and_measured_in_little_time_and_memory() -> None:
    command = [sys.executable, "-m", "tests.unit.stress.check_size", str(EXECUTIONS)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert (said["executions"], said["queues"], said["broken"]) == (EXECUTIONS, 2_000, [])
    # What other tests do at the same time is not its fault.
    assert said["cpu_seconds"] < SECONDS
    assert said["memory_mb"] < MEMORY_MB
