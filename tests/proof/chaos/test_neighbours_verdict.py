"""The verdict on a run beside neighbours names every bound that was missed, and who was active then."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.webhooks.receiver import Received
from tests.proof.chaos.neighbours.process import Disturbed
from tests.proof.chaos.neighbours.schedule import Disturbance, Kind
from tests.proof.chaos.neighbours.verdict import Start, Suffered, missed, percentile
from tests.proof.chaos.neighbours.watching import Peak, Probe, Watch, memory_limits
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
        way="amqp",
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


def probe(seconds: float, took_seconds: float, said: str = "200") -> Probe:
    return Probe(service="executor-1", at=at(seconds), seconds=took_seconds, said=said)


def delivery(number: int, seconds: float) -> Received:
    return Received(path=f"/hook/{number}", headers={}, body=b"", at=at(seconds))


FINE = Suffered(
    starts=[start(number) for number in range(600)],
    disturbed=[disturbed(Kind.FULL_LINE, 2.0, 6.0), disturbed(Kind.MANY_KEYS, 10.0, 15.0)],
    watch=Watch(
        probes=[probe(number / 5, 0.01) for number in range(100)],
        peaks={"executor-1": Peak(memory_bytes=100 << 20, at=at(3.0))},
    ),
    told=[delivery(10, 1.2)],
    callbacks=frozenset({10}),
)


def verdict(suffered: Suffered, patience: float = 1.0) -> list[str]:
    return list(missed(suffered, LIMITS, patience=patience))


def late(*numbers: int, took_seconds: float = 1.5) -> Suffered:
    return replace(
        FINE,
        starts=[start(n, took_seconds=took_seconds if n in numbers else 0.05) for n in range(600)],
    )


def test_a_run_as_it_should_be_has_no_violation() -> None:
    assert verdict(FINE) == []


def test_late_starts_are_named_with_the_neighbour_that_was_active() -> None:
    slow = late(*range(110, 117))
    overall, beside = verdict(slow)
    assert "in all was 1.50 s" in overall
    assert "7 beside many keys (v)" in overall
    assert "beside many keys was 1.50 s" in beside
    assert verdict(slow, patience=2.0) == []


def test_a_neighbour_alone_is_held_to_the_bound_though_the_whole_run_kept_it() -> None:
    """Four of six hundred are within p99; of the sixty beside one neighbour they are not."""
    (beside,) = verdict(late(110, 111, 112, 113))
    assert "beside many keys was 1.50 s" in beside


def test_three_late_starts_are_no_verdict() -> None:
    assert verdict(late(110, 111, 112)) == []


def test_one_that_never_started_is_late_and_has_not_ended() -> None:
    gone = start(110, started_at=None, ended_at=None, status=None, granted_at=None, admitted_at=None)
    starts = [replace(gone, number=n) if 110 <= n < 117 else start(n) for n in range(600)]
    overall, beside, lost = verdict(
        replace(FINE, starts=[replace(s, due_at=at(s.number / 10)) for s in starts])
    )
    assert "in all was inf s" in overall
    assert "beside many keys was inf s" in beside
    assert "7 of the steady load are never admitted, submitted over amqp: 110, 111" in lost


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.ABANDONED])
def test_an_end_that_is_not_the_right_one_is_a_violation(status: Status) -> None:
    starts = [start(n, status=status if n == 5 else Status.COMPLETED) for n in range(600)]
    (wrong,) = verdict(replace(FINE, starts=starts))
    assert f"1 of the steady load are {status}" in wrong


@pytest.mark.parametrize(
    ("bad", "said"), [(probe(12.0, 1.2), "1.20 s"), (probe(12.0, 0.1, "ReadTimeout"), "ReadTimeout")]
)
def test_one_slow_or_failed_livez_is_a_violation(bad: Probe, said: str) -> None:
    watch = replace(FINE.watch, probes=[*FINE.watch.probes, bad])
    (slow,) = verdict(replace(FINE, watch=watch))
    assert "1 of 101 answers of /livez" in slow
    assert said in slow
    assert "1 beside many keys (v)" in slow


def test_memory_above_the_deployments_limit_is_a_violation() -> None:
    peaks = {"executor-1": Peak(memory_bytes=400 << 20, at=at(3.0))}
    (much,) = verdict(replace(FINE, watch=replace(FINE.watch, peaks=peaks)))
    assert much == "executor-1 held 400 MB, its deployment allows 384; active: full line (v)"
    peaks = {"worker-1": Peak(memory_bytes=400 << 20, at=at(3.0))}
    assert verdict(replace(FINE, watch=replace(FINE.watch, peaks=peaks))) == []


@pytest.mark.parametrize("told", [[], [delivery(10, 8.0)]])
def test_a_webhook_that_came_late_or_never_is_a_violation(told: list[Received]) -> None:
    (slow,) = verdict(replace(FINE, told=told))
    assert "1 of 1 webhooks came later than 5 s" in slow
    assert "1 beside full line (v)" in slow


def test_a_neighbour_that_did_nothing_or_failed_is_a_violation() -> None:
    idle = replace(FINE.disturbed[0], did={})
    failed = replace(FINE.disturbed[1], failed="OSError: no route")
    first, second = verdict(replace(FINE, disturbed=[idle, failed]))
    assert "full line (v), came to nothing" in first
    assert "many keys (v), failed itself: OSError: no route" in second


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(100)], 0.99) == 98.0
    assert percentile([float(n) for n in range(100)], 1.0) == 99.0


def test_the_limits_of_memory_are_read_from_the_deployment() -> None:
    assert memory_limits() == LIMITS
