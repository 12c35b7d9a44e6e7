"""The metrics; field names are keys of `report.json`. None: there was nothing to measure."""

from dataclasses import dataclass

from turnstile.stress.scenario import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The percentiles of a latency, in milliseconds (nearest rank)."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The recovery from one fault; seconds count from the beginning of the fault."""

    kind: FaultKind
    target: str
    at_seconds: float
    """Its beginning, from the beginning of the scenario."""
    healed_seconds: float
    """Until the fault was repaired: process up and ready, limit restored."""
    stall_seconds: float
    """The longest time without a start while an execution could have started, until the recovery."""
    lost_runs: int
    """Runs that the fault ended."""
    reclaim_seconds: float | None
    """Until the last of them had a slot again."""
    recovered_seconds: float | None
    """Until the previous throughput was reached; None: not before the load was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioMetrics:
    """The metrics of one scenario, up to the moment when it lifts its limit (if it does)."""

    ended: int
    seconds: float
    """From the first request, or from resuming paused actions, to the last end."""
    executions_per_second: float
    sent_per_second: float
    """Requests confirmed by the broker."""
    answer: Spread | None
    """From sending a request to the executor's reply."""
    hand_over: Spread | None
    """From the stop of a run to the start of the next one, which was waiting, by the clock of their host."""
    end_to_grant: Spread | None
    """The part of a hand-over until the slot was granted again, by the clock of the database."""
    grant_to_start: Spread | None
    """From a grant to the start of the run."""
    peak_slots: int
    """Peak number of slots of one queue, from grant to end."""
    peak_runs: int
    """Peak number of concurrent runs of one queue."""
    idle_share: float | None
    """Share of the slot time, while executions waited, that no run used."""
    started_out_of_order: float | None
    """Share of starts after the start of a later request of the same queue; no fault above limit 1, where
    executions are granted in order and start concurrently."""
    recoveries: tuple[Recovery, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cost of an execution at one depth or number of keys."""

    at: int
    executions_per_second: float
    hand_over: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """The metrics of a run."""

    limit: int | None
    """The limit of `per_second_limited`."""
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
