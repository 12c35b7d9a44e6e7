"""Folders for data that nobody keeps, deleted at the end, or by the next comer where the end was a kill -9.

Each folder holds a file that its owner keeps locked. The kernel drops the lock with the process, whatever its
death, so a folder whose file can be locked has no owner any more.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Self

_PREFIX = "turnstile-"
_UNFINISHED = "new-turnstile-"
_LOCK = "owner.lock"


class ScratchFolder:
    """A folder of ours under the machine's temporary folder."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls) -> Self:
        """Create an empty folder, and delete those of our account whose owners are gone."""
        _delete_abandoned()
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED))
        # Servers that run under other accounts pass through to folders that only they can read.
        unfinished.chmod(0o711)
        lock = (unfinished / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now under a name that others look for: it is never seen without its lock.
        path = unfinished.rename(unfinished.with_name(_PREFIX + unfinished.name.removeprefix(_UNFINISHED)))
        return cls(path, lock)

    def delete(self) -> None:
        """Delete the folder and all in it; nothing may use it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _delete_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            # Another account's folder, or a link that another account put there, is not ours to delete.
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            with (path / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
