"""What somebody asks of a run: the options of `stress run`, checked, before anything is started.

In: values from the command line. Out: an `Asked`, or ValueError that names the option and what would do.
Next: `presets` makes stages of it.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Final, Self

from turnstile.common.domain.durations import format_duration
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import FaultKind


class Preset(StrEnum):
    """Loads that answer one question each; the value is its name on the command line."""

    SMOKE = "smoke"
    """Does it work at all? Everything once, in under a minute."""
    LIMITS = "limits"
    """Are limits kept: one, few, many, none, and changed under load?"""
    FIFO = "fifo"
    """Is order kept: with many submitters, keys, and executors that die?"""
    KEYS = "keys"
    """What do many queues cost?"""
    DEPTH = "depth"
    """What does a long line cost?"""
    RECOVERY = "recovery"
    """How long is each fault felt?"""
    SOAK = "soak"
    """Does it stay so for hours?"""


EXECUTIONS_MAX: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run; None: the preset decides."""

    preset: Preset | None
    local: bool
    seed: int
    actions: int
    limit: int | None
    executions: int | None
    mix: DurationMix | None
    keys: int
    submitters: int
    rate: float | None
    faults: tuple[FaultKind, ...]
    depths: tuple[int, ...] | None
    key_counts: tuple[int, ...] | None
    duration_seconds: float
    """Of a soak."""
    executors: int
    workers: int
    lease_seconds: float

    def checked(self) -> Self:
        """Return it, or raise ValueError for what cannot be done."""
        bounds = {
            "--actions": (self.actions, 1, 1000),
            "--limit": (1 if self.limit is None else self.limit, 1, 100_000),
            "--executions": (1 if self.executions is None else self.executions, 1, EXECUTIONS_MAX),
            "--keys": (self.keys, 0, 100_000),
            "--submitters": (self.submitters, 1, 64),
            "--executors": (self.executors, 1, 16),
            "--workers": (self.workers, 1, 64),
            "--lease": (self.lease_seconds, 1.0, 3600.0),
            "--duration": (self.duration_seconds, 10.0, 30 * 86400.0),
        }
        for option, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise ValueError(f"{option}: {value:g} is not between {least:g} and {most:g}")
        if self.rate is not None and not (isfinite(self.rate) and self.rate > 0):
            raise ValueError(
                f"--rate: {self.rate:g} requests per second; expected a number above 0, or leave it out"
            )
        for option, counts in (("--depths", self.depths), ("--key-counts", self.key_counts)):
            if counts is not None and not (counts and all(1 <= count <= EXECUTIONS_MAX for count in counts)):
                raise ValueError(f"{option}: expected numbers from 1 on, by commas, like 100,1000,10000")
        if self.faults and not self.local:
            raise ValueError(
                "--faults: only with --local; what others use is not broken by us. "
                "Break it yourself while a run without --faults goes on: it is judged all the same"
            )
        if self.preset is Preset.RECOVERY and not self.local:
            raise ValueError("--preset recovery: it kills and restarts what runs, so only with --local")
        if self.faults and self.preset not in (None, Preset.SOAK):
            raise ValueError(f"--faults: the preset {self.preset} has its own; leave one of the two out")
        return self

    def describe(self) -> str:
        """Say in a few words what is asked."""
        where = (
            f"{self.executors} executors, {self.workers} workers, lease {format_duration(self.lease_seconds)}"
        )
        what = f"preset {self.preset}" if self.preset else "the default run"
        return what + (f", private servers, {where}" if self.local else "")
