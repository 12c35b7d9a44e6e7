"""The exit codes of all commands: scripts rely on them, so a number never changes its meaning.

`docs/scripts.md` lists them; a test compares. A signal that a command does not handle ends it with 128 plus
the signal's number, as shells report it.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """How a command ended. It has no other exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    WATCHED_TIMEOUT = 5
    WATCHED_CANCELLED = 6
    WATCHED_EXPIRED = 7
    WATCHED_ABANDONED = 8
    NOT_INSTALLED = 69
    NOT_STOPPED = 70
    HUNG_UP = 129
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "The command did what was asked, or a service has stopped in order.",
    ExitCode.FAILED: (
        "A request was rejected, a check or an execution failed, or an unexpected error occurred."
    ),
    ExitCode.USAGE: (
        "An argument or a setting is wrong, or a confirmation is missing (`--yes`). Nothing was changed."
    ),
    ExitCode.UNREACHABLE: (
        "A server cannot be reached. Whether a change was made is unknown, unless the error says."
    ),
    ExitCode.TIMED_OUT: "A wait timed out; what was waited for continues.",
    ExitCode.WATCHED_TIMEOUT: "`executor watch`: the execution ended with the status `timeout`.",
    ExitCode.WATCHED_CANCELLED: "`executor watch`: the execution was cancelled.",
    ExitCode.WATCHED_EXPIRED: "`executor watch`: the execution expired.",
    ExitCode.WATCHED_ABANDONED: "`executor watch`: the execution was abandoned.",
    ExitCode.NOT_INSTALLED: (
        "`demo`, `dev`, `stress`: PostgreSQL or RabbitMQ is not installed on this machine."
    ),
    ExitCode.NOT_STOPPED: "A service could not stop its work in time, and has ended itself.",
    ExitCode.HUNG_UP: "SIGHUP ended the command.",
    ExitCode.INTERRUPTED: "Ctrl-C (SIGINT) ended the command.",
    ExitCode.PIPE_CLOSED: "The reader of the output has ended (SIGPIPE), as with `head -1` behind a list.",
    ExitCode.TERMINATED: "SIGTERM ended the command. A service stops in order instead, with 0.",
}
