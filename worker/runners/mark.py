"""Marks every process of a run, so that none can get lost, wherever it moves.

In: a run that is about to start. Out: a mark that its processes inherit and that others can read in /proc.
It is put in two places. The variable `TURNSTILE_RUN` is there from the first instruction on, but a program
may clear its environment, and nobody can read that of one that hides its memory (ssh-agent). The soft limit
of real-time CPU time is set a moment after the start; nobody clears it, everybody may read it, and as a limit
of a hundred thousand years it has no other effect. Next: `worker.runners.guardian`.
"""

import resource
import secrets
from dataclasses import dataclass
from typing import Final, Self

VARIABLE: Final = "TURNSTILE_RUN"
_VALUE_BITS: Final = 62


@dataclass(frozen=True, slots=True)
class RunMark:
    """The mark of one run."""

    value: int

    @classmethod
    def new(cls) -> Self:
        """Return a mark like no other; its high bit is set: as a limit it is high, as text 16 digits long."""
        return cls(1 << _VALUE_BITS | secrets.randbits(_VALUE_BITS))

    @property
    def text(self) -> str:
        """How it stands in the environment."""
        return f"{self.value:016x}"

    def put_on(self, pid: int) -> None:
        """Put the mark on a child of ours that has just started: what it starts from now on inherits it."""
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        try:
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (self.value, hard))
        except (OSError, ValueError):
            # It has ended, runs with other rights than ours (set-user-id), or somebody set a lower limit.
            pass
