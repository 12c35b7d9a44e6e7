"""The errors of private servers, as one tree.

LocalServersError
├── MissingBinaries    a server is not installed, and could not be installed (exit code 69)
└── ServerFailed       a server did not start, or ended by itself; contains the end of its log
"""

from collections.abc import Sequence
from pathlib import Path

_LOG_LINES_SHOWN = 40


class LocalServersError(Exception):
    """A private server could not be provided."""

    exit_code = 1


class MissingBinaries(LocalServersError):
    """A server is not installed; `command` installs what is missing."""

    # EX_UNAVAILABLE of sysexits.h, so that scripts can distinguish a missing server from a failure.
    exit_code = 69

    def __init__(self, missing: Sequence[str], command: str) -> None:
        self.missing = tuple(missing)
        self.command = command
        super().__init__(
            f"{' and '.join(missing)} not found on this machine. Install with:\n\n    {command}\n"
        )


class ServerFailed(LocalServersError):
    """A server did not start, or ended by itself."""

    def __init__(self, what: str, *logs: Path) -> None:
        shown = [f"--- {log}\n{_end_of(log)}" for log in logs if log.exists()]
        super().__init__("\n".join([what, *shown]))


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES_SHOWN:])
