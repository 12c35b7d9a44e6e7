"""The line that an action writes when it starts and when it stops, and how it is read again.

In: an execution's number, id and attempt. Out: fixed-size records appended to one file for each process, in
one write each, so that none is torn and none is lost when the process is killed. Instants are of the
monotonic clock, which all processes of a host share.
"""

import os
import struct
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

MARK: Final = np.dtype(
    [("at", "<i8"), ("number", "<i8"), ("execution_id", "<i8"), ("attempt", "<i4"), ("kind", "<i4")]
)
"""`at`: monotonic nanoseconds."""
START: Final = 1
STOP: Final = 2

_RECORD: Final = struct.Struct("<qqqii")
assert _RECORD.size == MARK.itemsize


class MarkWriter:
    """Appends to the file of this process; not to be shared with a child."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{time.time_ns()}.marks"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def mark(self, kind: int, number: int, execution_id: int, attempt: int) -> None:
        """Write that an attempt starts or stops now."""
        os.write(self._file, _RECORD.pack(time.monotonic_ns(), number, execution_id, attempt, kind))


def read_marks(path: Path) -> "np.ndarray[Any, np.dtype[np.void]]":
    """Return the marks of one process in the order in which they were written."""
    with path.open("rb") as file:
        whole = file.seek(0, os.SEEK_END) // MARK.itemsize
        file.seek(0)
        return np.fromfile(file, MARK, whole)


def process_of(path: Path) -> int:
    """Return the process id that wrote the file."""
    return int(path.name.partition("-")[0])
