"""Ends what a worker was running if the worker itself is killed: no second running copy after a reclaim (P6).

In: the process groups that start and end. Out: while the worker lives, nothing; when it dies in whatever way,
its pipe to the guardian process closes, and that kills all groups still noted. A worker that is stopped or
cut off ends nothing itself: `hold_until` names the instant when the guardian does. Next: `guardian_main`.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_MAIN: Final = Path(__file__).with_name("guardian_main.py")
_END_SECONDS: Final = 5.0


class Guardian:
    """A small process beside the worker; use it as a context."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # -I -S: nothing but the standard library, so that it is small and up in 20 ms.
            [sys.executable, "-I", "-S", str(_MAIN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Note a group that has started."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Strike out a group that has ended."""
        self._tell(f"-{group}\n")

    def hold_until(self, deadline_seconds: float | None) -> None:
        """Let what runs go on until this instant of CLOCK_BOOTTIME, and no longer unless told anew.

        It is the guardian that kills then, so it happens though this process is stopped. None: no deadline.
        May be called from any thread.
        """
        self._tell("=\n" if deadline_seconds is None else f"={deadline_seconds:.6f}\n")

    def close(self) -> None:
        """End the guardian, and with it any group still noted."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait(_END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            # A line is far below PIPE_BUF, so it is written whole; the guardian does nothing but read.
            os.write(self._process.stdin.fileno(), line.encode())
        except BrokenPipeError:
            # Somebody killed the guardian: runs go on, only without this safety net.
            pass
