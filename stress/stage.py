"""What a run does: stages, one after the other, each a load and what befalls the system meanwhile.

In: nothing; these are values. Out: `Stage`, which `presets` composes, `drive` carries out, `check` judges and
`figures` measures. Each stage drains before the next begins, so each is judged alone.
"""

from dataclasses import dataclass
from enum import StrEnum

from turnstile.stress.mix import DurationMix


class Purpose(StrEnum):
    """Which of the figures a stage yields; all of them are checked alike."""

    LOAD = "load"
    """The load that was asked for."""
    THROUGHPUT = "throughput"
    """No-op executions, as fast as they go."""
    HAND_OVER = "hand-over"
    """One at a time: from the stop of one to the start of the next."""
    DEPTH = "depth"
    """What a hand-over costs behind which so many wait."""
    KEYS = "keys"
    """What an execution costs among so many queues."""
    RECOVERY = "recovery"
    """How long faults are felt."""


class FaultKind(StrEnum):
    """Everything that can be done to a private installation."""

    KILL_WORKER = "kill worker"
    KILL_EXECUTOR = "kill executor"
    PAUSE_WORKER = "pause worker"
    PAUSE_EXECUTOR = "pause executor"
    RESTART_BROKER = "restart broker"
    RESTART_DATABASE = "restart database"
    PURGE_QUEUES = "purge queues"
    CHANGE_LIMIT = "change limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault; `at_seconds` counts from the first request of the stage."""

    kind: FaultKind
    at_seconds: float
    lasting_seconds: float = 0.0
    """Until its healing begins."""
    target: int = 0
    """Which worker, executor or action, counted from 0."""
    limit: int | None = None
    """What a limit is changed to while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked for."""

    executions: int
    mix: DurationMix
    actions: int = 10
    keys: int = 0
    """Concurrency keys of each action; 0: one queue for each action."""
    submitters: int = 4
    rate: float | None = None
    """Requests per second over all submitters; None: as fast as the broker confirms them."""
    answered: bool = True
    """Ask the executor for an answer to each request."""

    @property
    def queues(self) -> int:
        """How many lines it fills."""
        return self.actions * max(self.keys, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One load under one limit."""

    name: str
    """Unique in the run: letters, digits and `-`."""
    title: str
    """For people."""
    purpose: Purpose
    load: Load
    limit: int | None
    """Of each queue; None: no limit."""
    all_wait_first: bool = False
    """Nothing is started before everything waits."""
    drain_without_limit_after: int | None = None
    """Lift the limit once so many have ended: the figure is taken, and the rest need not take long."""
    faults: tuple[PlannedFault, ...] = ()
