"""The folder of a run: it has the logs of all processes, and stays only where something is wrong.

In: a name. Out: a `RunFolder` for the length of the run. Whoever judges writes the violations into it.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RECORDING: Final = "recording.pickle"
"""The file in the run's folder that holds the whole `Recording`."""
VIOLATIONS: Final = "violations.txt"
"""The file beside it that holds what was wrong."""


@dataclass(slots=True, kw_only=True)
class RunFolder:
    """A folder, and what was wrong in the run: None until somebody has judged."""

    path: Path
    violations: list[str] | None = None


@contextmanager
def run_folder(name: str, *, keep: bool) -> Iterator[RunFolder]:
    """Lend a new folder; afterwards it is gone, unless there are violations. `keep`: it stays anyway."""
    folder = RunFolder(path=Path(tempfile.mkdtemp(prefix=f"{name}-")))
    try:
        with _logging_to(folder.path / "harness.log"):
            yield folder
    finally:
        if folder.violations is None:
            logging.getLogger(__name__).error("broken off; logs are in %s", folder.path)
        elif not folder.violations and not keep:
            shutil.rmtree(folder.path)
        else:
            (folder.path / VIOLATIONS).write_text("".join(f"{each}\n" for each in folder.violations))


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Keep what our own connections say about the faults out of the report."""
    root, handler = logging.getLogger(), logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
