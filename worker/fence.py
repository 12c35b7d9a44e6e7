"""Decides whether a worker may start work, may go on with it, or must kill it; `now` is a parameter (P6).

In: when the last renewal that succeeded was *sent*, when the last question that the broker answered was sent.
Both are instants of the worker's own clock, and the database counted the lease from a later one: so what is
certain here is certain there. Out: a `Standing`, and the instants at which it changes. Next: `worker.lease`
looks, `worker.cancels` asks the broker.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

_MARGIN_SHARE: Final = 0.2
_MARGIN_SECONDS_MIN: Final = 1.0
_PROOF_SECONDS_MAX: Final = 3.0
_ENFORCE_SHARE: Final = 0.6
_GUARDIAN_SHARE: Final = 0.8


class Standing(Enum):
    """What a worker may do."""

    CERTAIN = "certain"
    """The lease holds: anything."""
    IN_DOUBT = "in doubt"
    """It may be over, but a word to stop would reach us: go on, start nothing."""
    OVER = "over"
    """It may be over and nobody could tell us: whatever runs must be dead before somebody runs it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a worker knows of its two servers."""

    renewed_at: float | None = None
    """When the last renewal that succeeded was sent; None: nothing was started yet."""
    reached_at: float | None = None
    """When the broker was last asked, and answered, whether a word to stop would be delivered to us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The durations of one lease, and what follows from them."""

    lease_seconds: float
    heartbeat_seconds: float

    @property
    def margin_seconds(self) -> float:
        """For killing what runs, before the lease ends."""
        return min(max(_MARGIN_SECONDS_MIN, _MARGIN_SHARE * self.lease_seconds), self.lease_seconds / 3)

    @property
    def proof_seconds(self) -> float:
        """How long an answer of the broker counts. This is the longest overlap of two copies of a run."""
        return min(_PROOF_SECONDS_MAX, self.lease_seconds / 2)

    @property
    def enforce_seconds(self) -> float:
        """After this much of the margin a process that cannot kill what it runs ends itself."""
        return _ENFORCE_SHARE * self.margin_seconds

    def certain_until(self, evidence: Evidence) -> float:
        """Return the instant up to which the database holds the lease for sure."""
        if evidence.renewed_at is None:
            return -math.inf
        return evidence.renewed_at + self.lease_seconds - self.margin_seconds

    def may_run_until(self, evidence: Evidence) -> float:
        """Return the instant at which whatever runs must be killed, unless there is news before."""
        if evidence.renewed_at is None:
            return math.inf
        if evidence.reached_at is None:
            return self.certain_until(evidence)
        return max(self.certain_until(evidence), evidence.reached_at + self.proof_seconds)

    def killed_from_outside_at(self, evidence: Evidence) -> float:
        """Return the instant at which the guardian kills what this process did not: it may be stopped."""
        return self.may_run_until(evidence) + _GUARDIAN_SHARE * self.margin_seconds

    def asks_broker_from(self, evidence: Evidence) -> float:
        """Return from when on the broker is to be asked: a renewal is late, and the lease still certain."""
        if evidence.renewed_at is None:
            return math.inf
        return (evidence.renewed_at + self.heartbeat_seconds + self.certain_until(evidence)) / 2

    def standing(self, evidence: Evidence, *, now: float) -> Standing:
        """Judge. An `OVER` is for good: it holds whatever is learned afterwards."""
        if now < self.certain_until(evidence):
            return Standing.CERTAIN
        return Standing.IN_DOUBT if now < self.may_run_until(evidence) else Standing.OVER
