"""The verdict on a run beside neighbours names every bound that was missed, and the active neighbours."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.webhooks.receiver import Received
from tests.proof.chaos.neighbours.monitor import Observations, Peak, Probe
from tests.proof.chaos.neighbours.neighbour import Disturbed
from tests.proof.chaos.neighbours.schedule import Disturbance, Kind
from tests.proof.chaos.neighbours.verdict import Effects, Start, missed
from turnstile.common.domain.states import Status

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
LIMITS = {"executor": 384 << 20, "worker": 1 << 30}


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def start(number: int, *, took_seconds: float = 0.05, **changed: object) -> Start:
    due_at = at(number / 10)
    started_at = due_at + timedelta(seconds=took_seconds)
    fine = Start(
        number=number,
        due_at=due_at,
        admitted_at=due_at,
        granted_at=due_at,
        started_at=started_at,
        ended_at=started_at,
        status=Status.COMPLETED,
    )
    return replace(fine, **changed)  # type: ignore[arg-type]


def disturbed(kind: Kind, began: float, ended: float) -> Disturbed:
    disturbance = Disturbance(
        number=1, kind=kind, variant="v", at_seconds=began, lasting_seconds=ended - began
    )
    return Disturbed(
        disturbance=disturbance, began_at=at(began), ended_at=at(ended), did={"messages": 1}, failed=None
    )


def probe(seconds: float, took_seconds: float, answer: str = "200") -> Probe:
    return Probe(service="executor-1", at=at(seconds), seconds=took_seconds, answer=answer)


def delivery(number: int, seconds: float) -> Received:
    return Received(path=f"/hook/{number}", headers={}, body=b"", at=at(seconds))


FINE = Effects(
    starts=[start(number) for number in range(600)],
    disturbed=[disturbed(Kind.FULL_QUEUE, 2.0, 6.0), disturbed(Kind.MANY_KEYS, 10.0, 15.0)],
    observed=Observations(
        probes=[probe(number / 5, 0.01) for number in range(100)],
        peaks={"executor-1": Peak(memory_bytes=100 << 20, at=at(3.0))},
    ),
    received=[delivery(10, 1.2)],
    callbacks=frozenset({10}),
)


def verdict(effects: Effects, patience: float = 1.0) -> list[str]:
    return list(missed(effects, LIMITS, patience=patience))


def late(*numbers: int, took_seconds: float = 1.5) -> Effects:
    return replace(
        FINE,
        starts=[start(n, took_seconds=took_seconds if n in numbers else 0.05) for n in range(600)],
    )


def test_a_correct_run_has_no_violation() -> None:
    assert verdict(FINE) == []


def test_late_starts_are_named_with_the_active_neighbour() -> None:
    slow = late(*range(110, 117))
    overall, beside = verdict(slow)
    assert "in all was 1.50 s" in overall
    assert "7 beside many keys (v)" in overall
    assert "beside many keys was 1.50 s" in beside
    assert verdict(slow, patience=2.0) == []


def test_the_bound_holds_for_each_neighbour_and_not_only_for_the_whole_run() -> None:
    """Four of six hundred are within p99; of the sixty beside one neighbour they are not."""
    (beside,) = verdict(late(110, 111, 112, 113))
    assert "beside many keys was 1.50 s" in beside


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.ABANDONED])
def test_a_wrong_outcome_is_a_violation(status: Status) -> None:
    starts = [start(n, status=status if n == 5 else Status.COMPLETED) for n in range(600)]
    (wrong,) = verdict(replace(FINE, starts=starts))
    assert f"1 of the steady load are {status}" in wrong


@pytest.mark.parametrize(
    ("bad", "named"), [(probe(12.0, 1.2), "1.20 s"), (probe(12.0, 0.1, "ReadTimeout"), "ReadTimeout")]
)
def test_one_slow_or_failed_livez_is_a_violation(bad: Probe, named: str) -> None:
    watch = replace(FINE.observed, probes=[*FINE.observed.probes, bad])
    (slow,) = verdict(replace(FINE, observed=watch))
    assert "1 of 101 answers of /livez" in slow
    assert named in slow
    assert "1 beside many keys (v)" in slow


def test_memory_above_the_deployments_limit_is_a_violation() -> None:
    peaks = {"executor-1": Peak(memory_bytes=400 << 20, at=at(3.0))}
    (much,) = verdict(replace(FINE, observed=replace(FINE.observed, peaks=peaks)))
    assert much == "executor-1 held 400 MB, its deployment allows 384; active: full queue (v)"
    peaks = {"worker-1": Peak(memory_bytes=400 << 20, at=at(3.0))}
    assert verdict(replace(FINE, observed=replace(FINE.observed, peaks=peaks))) == []


@pytest.mark.parametrize("received", [[], [delivery(10, 8.0)]])
def test_a_late_or_missing_webhook_is_a_violation(received: list[Received]) -> None:
    (slow,) = verdict(replace(FINE, received=received))
    assert "1 of 1 webhooks came later than 5 s" in slow
    assert "1 beside full queue (v)" in slow


def test_a_neighbour_without_effect_or_that_failed_is_a_violation() -> None:
    idle = replace(FINE.disturbed[0], did={})
    failed = replace(FINE.disturbed[1], failed="OSError: no route")
    first, second = verdict(replace(FINE, disturbed=[idle, failed]))
    assert "full queue (v), had no effect" in first
    assert "many keys (v), failed: OSError: no route" in second
