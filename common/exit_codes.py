"""The exit codes of all commands: scripts rely on them, so a number never changes its meaning.

`docs/scripts.md` lists them; a test compares. A signal that a command does not handle ends it with 128 plus
the signal's number, as shells report it.
"""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """How a command ended. It has no other exit codes."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """Return the member with its meaning."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    OK = 0, "The command did what was asked, or a service has stopped in order."
    FAILED = 1, "A request was rejected, a check or an execution failed, or an unexpected error occurred."
    USAGE = (
        2,
        "An argument or a setting is wrong, or a confirmation is missing (`--yes`). Nothing was changed.",
    )
    UNREACHABLE = (
        3,
        "A server cannot be reached. Whether a change was made is unknown, unless the error says.",
    )
    TIMED_OUT = 4, "A wait timed out; what was waited for continues."
    WATCHED_TIMEOUT = 5, "`executor watch`: the execution ended with the status `timeout`."
    WATCHED_CANCELLED = 6, "`executor watch`: the execution was cancelled."
    WATCHED_EXPIRED = 7, "`executor watch`: the execution expired."
    WATCHED_ABANDONED = 8, "`executor watch`: the execution was abandoned."
    NOT_INSTALLED = 69, "`demo`, `dev`, `stress`: PostgreSQL or RabbitMQ is not installed on this machine."
    NOT_STOPPED = 70, "A service could not stop its work in time, and has ended itself."
    HUNG_UP = 129, "SIGHUP ended the command."
    INTERRUPTED = 130, "Ctrl-C (SIGINT) ended the command."
    PIPE_CLOSED = 141, "The reader of the output has ended (SIGPIPE), as with `head -1` behind a list."
    TERMINATED = 143, "SIGTERM ended the command. A service stops in order instead, with 0."
