"""What is measured. None: there was nothing to measure it by."""

from dataclasses import dataclass

from turnstile.stress.stage import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a latency is spread, in milliseconds (nearest rank)."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long one fault was felt; seconds count from its beginning."""

    kind: FaultKind
    target: str
    at_seconds: float
    """When it began, from the beginning of the stage."""
    healed_seconds: float
    """Until what was broken was whole again."""
    stall_seconds: float
    """The longest time without any start while something could have started, from the fault to its
    recovery."""
    lost_runs: int
    """Runs that were cut off by it."""
    reclaim_seconds: float | None
    """Until the last of these had its slot again."""
    recovered_seconds: float | None
    """Until the system ran as before; None: it did not before the load was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """The figures of one stage; of one that lifts its limit in the end, all is measured up to that."""

    ended: int
    seconds: float
    """From the first request (or from letting go what had been held back) to the last end."""
    executions_per_second: float
    sent_per_second: float
    """How fast the broker confirmed requests."""
    answer: Spread | None
    """From sending a request to the executor's answer."""
    hand_over: Spread | None
    """From the stop of one run to the start of the next on a full queue in which it was waiting, by the clock
    of their host."""
    end_to_grant: Spread | None
    """The part of a hand-over until the slot was granted on, by the clock of the database."""
    grant_to_start: Spread | None
    """From each grant to its start."""
    most_held: int
    """Slots of one queue at one moment, from grant to end."""
    most_running: int
    """Runs of one queue at one moment."""
    idle_share: float | None
    """Of the time of all slots while somebody waited for them: how much of it no run filled."""
    started_out_of_order: float | None
    """Share of starts before which a later request of the same queue had started; above limit 1 that is no
    fault: granted in order, started side by side."""
    recoveries: tuple[Recovery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cost of an execution at one depth or number of keys."""

    at: int
    executions_per_second: float
    hand_over: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiveFigures:
    """What a run comes to."""

    limit: int | None
    """Under which `per_second_limited` was measured."""
    per_second_limited: float | None
    per_second_unlimited: float | None
    hand_over: Spread | None
    """At limit 1."""
    by_depth: tuple[Point, ...]
    by_keys: tuple[Point, ...]
    recoveries: tuple[Recovery, ...]
    order_violations: int
    limit_violations: int
    other_violations: int
