"""Names and the trace format that the stress test shares with its actions, which run without numpy.

An action writes a record when it starts and when it stops: fixed-size, appended to one file per process with
one write each, so that no record is torn or lost when the process is killed. Instants are of the monotonic
clock, which all processes of a host share. `drive.traces` reads the files.
"""

import os
import struct
import time
from functools import cache
from pathlib import Path
from typing import Final

POOL: Final = "stress"
"""The pool of all actions of the stress test: other workers never run them."""
ACTIONS_VARIABLE: Final = "TURNSTILE_STRESS_ACTIONS"
"""The number of actions that a worker declares."""
ACTIONS_DEFAULT: Final = 10
TRACE_VARIABLE: Final = "TURNSTILE_STRESS_TRACES"
"""The folder of the trace files; unset: actions return start and stop in their results."""
TRACE_SUFFIX: Final = ".trace"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

START: Final = 1
STOP: Final = 2
RECORD: Final = struct.Struct("<qqqii")
"""Monotonic nanoseconds, number, execution id, attempt, kind (START or STOP)."""


@cache
def boot_id() -> str:
    """Return the id of this boot of this host, which has a monotonic clock of its own."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def action_ref(number: int) -> str:
    """Return the ref of the action of this number."""
    return f"{POOL}.{number:02}"


class TraceWriter:
    """Appends to the trace file of this process; not to be shared with a child process."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{time.time_ns()}{TRACE_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: int, number: int, execution_id: int, attempt: int) -> None:
        """Record that an attempt starts or stops now."""
        os.write(self._file, RECORD.pack(time.monotonic_ns(), number, execution_id, attempt, kind))
