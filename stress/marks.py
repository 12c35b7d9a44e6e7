"""The line that an action writes when it starts and when it stops.

In: an execution's number, id and attempt. Out: fixed-size records appended to one file for each process, in
one write each, so that none is torn and none is lost when the process is killed. Instants are of the
monotonic clock, which all processes of a host share. Next: `drive.mark_files` reads them; not here, since a
worker has no use for numpy.
"""

import os
import struct
import time
from pathlib import Path
from typing import Final

START: Final = 1
STOP: Final = 2

RECORD: Final = struct.Struct("<qqqii")
"""Monotonic nanoseconds, number, execution id, attempt, kind."""


class MarkWriter:
    """Appends to the file of this process; not to be shared with a child."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{time.time_ns()}.marks"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def mark(self, kind: int, number: int, execution_id: int, attempt: int) -> None:
        """Write that an attempt starts or stops now."""
        os.write(self._file, RECORD.pack(time.monotonic_ns(), number, execution_id, attempt, kind))
