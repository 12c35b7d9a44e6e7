"""How far a stage has come, told a few times a second to whoever shows it."""

from collections.abc import Callable
from dataclasses import dataclass

from turnstile.stress.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look."""

    stage: Stage
    number: int
    """Of the stage, from 1."""
    stages: int
    elapsed_seconds: float
    sent: int
    """Confirmed by the broker."""
    ended: int
    waiting: int
    active: int
    note: str = ""
    """What is being done to the system right now; empty: nothing."""


Show = Callable[[Progress], None]
