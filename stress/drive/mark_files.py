"""Reads what the actions of this host wrote when they started and stopped.

In: the folder of the marks. Out: for each process its marks since the stage began. Workers live on from stage
to stage, so each stage notes first how long their files are. Next: `runs` pairs starts with stops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from turnstile.stress.marks import RECORD
from turnstile.stress.tables import Table

MARK: Final = np.dtype(
    [("at", "<i8"), ("number", "<i8"), ("execution_id", "<i8"), ("attempt", "<i4"), ("kind", "<i4")]
)
"""`at`: monotonic nanoseconds."""
assert MARK.itemsize == RECORD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMarks:
    """What one process wrote, in the order in which it did."""

    pid: int
    marks: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkFolder:
    """The folder as it was when the stage began."""

    folder: Path
    sizes_bytes: Mapping[str, int]

    @classmethod
    def now(cls, folder: Path) -> Self:
        """Note how long each file is."""
        return cls(folder=folder, sizes_bytes={path.name: path.stat().st_size for path in _files(folder)})

    def read(self) -> list[ProcessMarks]:
        """Return what was written since then; a process that wrote nothing is left out."""
        found = []
        for path in _files(self.folder):
            before = self.sizes_bytes.get(path.name, 0)
            count = (path.stat().st_size - before) // MARK.itemsize
            if count:
                marks = np.fromfile(path, MARK, count, offset=before)
                found.append(ProcessMarks(pid=int(path.name.partition("-")[0]), marks=marks))
        return found


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.marks"))
