"""Decides whether a worker may start work, may continue it, or must kill it; `now` is a parameter (P6).

In: when the last successful renewal, and the last successful probe of the broker, were *sent*. Both are
instants of the worker's own clock, and the leader counts the lease from a later instant: so what is certain
here is certain there. Out: a `Standing`, and the instants at which it changes.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

_MARGIN_SHARE: Final = 0.2
_MARGIN_SECONDS_MIN: Final = 1.0
_PROOF_SECONDS_MAX: Final = 3.0
_ENFORCE_SHARE: Final = 0.6
_SUPERVISOR_SHARE: Final = 0.8


class Standing(Enum):
    """What a worker may do."""

    CERTAIN = "certain"
    """The lease holds: anything is permitted."""
    IN_DOUBT = "in doubt"
    """The lease may be over, but a cancel message would arrive: continue, start nothing."""
    OVER = "over"
    """The lease may be over and no cancel message would arrive: kill what runs before it runs elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a worker knows about the leader and the broker."""

    renewed_at: float | None = None
    """When the last successful renewal was sent; None: nothing was started yet."""
    reached_at: float | None = None
    """When the last probe was sent that found that a cancel message would be delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The durations of one lease, and the instants that follow from them."""

    lease_seconds: float
    heartbeat_seconds: float

    @property
    def margin_seconds(self) -> float:
        """The time for killing what runs, before the lease ends."""
        return min(max(_MARGIN_SECONDS_MIN, _MARGIN_SHARE * self.lease_seconds), self.lease_seconds / 3)

    @property
    def proof_seconds(self) -> float:
        """How long a probe counts. This is the longest overlap of two copies of a run."""
        return min(_PROOF_SECONDS_MAX, self.lease_seconds / 2)

    @property
    def enforce_seconds(self) -> float:
        """After this much of the margin a process that cannot kill what it runs ends itself."""
        return _ENFORCE_SHARE * self.margin_seconds

    def certain_until(self, evidence: Evidence) -> float:
        """Return the instant until which the leader certainly holds the lease."""
        if evidence.renewed_at is None:
            return -math.inf
        return evidence.renewed_at + self.lease_seconds - self.margin_seconds

    def may_run_until(self, evidence: Evidence) -> float:
        """Return the instant at which all runs must be killed, unless there is new evidence before."""
        if evidence.renewed_at is None:
            return math.inf
        if evidence.reached_at is None:
            return self.certain_until(evidence)
        return max(self.certain_until(evidence), evidence.reached_at + self.proof_seconds)

    def killed_from_outside_at(self, evidence: Evidence) -> float:
        """Return when the supervisor kills what this process did not kill, because it may be stopped."""
        return self.may_run_until(evidence) + _SUPERVISOR_SHARE * self.margin_seconds

    def probes_broker_from(self, evidence: Evidence) -> float:
        """Return from when on the broker is probed: a renewal is late, and the lease still certain."""
        if evidence.renewed_at is None:
            return math.inf
        return (evidence.renewed_at + self.heartbeat_seconds + self.certain_until(evidence)) / 2

    def standing(self, evidence: Evidence, *, now: float) -> Standing:
        """Return the standing at `now`. `OVER` is final, whatever evidence comes later."""
        if now < self.certain_until(evidence):
            return Standing.CERTAIN
        return Standing.IN_DOUBT if now < self.may_run_until(evidence) else Standing.OVER
