"""What the metrics of a turn count."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.queue_manager.scheduler import Scheduler
from turnstile.executor.leader.instrumentation import TurnRecords
from turnstile.executor.leader.sessions import COMPLETIONS
from turnstile.executor.metrics import HAND_OVER_SECONDS
from turnstile.executor.queue_manager.definitions import Action


def handed_over(scheduler: Scheduler) -> int:
    """Return how many hand-overs the last turn adds to the metric, after it took a completion."""
    before = sum(HAND_OVER_SECONDS.counts.get((), ()))
    lead: Any = SimpleNamespace(
        admission=SimpleNamespace(take_noted=lambda: ((), ())), sessions=SimpleNamespace(offer_again=()),
        schedules=SimpleNamespace(take_noted=dict),
        state=scheduler.state,
    )  # fmt: skip
    taken: Any = SimpleNamespace(deliveries=[SimpleNamespace(queue=COMPLETIONS)], commands=())
    records = TurnRecords()
    records.begin()
    records.committed(lead, scheduler.out)
    records.ended(taken, scheduler.out)
    return sum(HAND_OVER_SECONDS.counts.get((), ())) - before


@pytest.mark.parametrize(("limit", "slots"), [(2, 10), (None, 2)], ids=["limit", "worker slots"])
def test_a_grant_beyond_the_slots_is_no_hand_over(limit: int | None, slots: int) -> None:
    s = Scheduler(Action(ref="a", max_concurrent=limit), workers={"w": slots})
    s.end_after(0.05, s.submit("a"))
    s.submit_all(*"a" * 20)
    assert (len(s.out.granted), handed_over(s)) == (2 + 4, 2)
    # The worker starts the next ones itself, and gets as many for later.
    s.end_after(0.05, *s.at("w")[:2])
    assert (len(s.out.granted), handed_over(s)) == (2, 0)


def test_without_runs_each_grant_is_a_hand_over() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=2, runs=False))
    s.end_after(0.05, s.submit("a"))
    s.submit_all(*"a" * 20)
    assert handed_over(s) == 2
    s.end_after(0.05, *s.at("w")[:2])
    assert handed_over(s) == 2
