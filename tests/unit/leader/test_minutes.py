"""What is counted of each minute, by action."""

from collections import Counter

import pytest

from tests.unit.queue_manager.scheduler import Scheduler, uses
from turnstile.common.domain.states import Status
from turnstile.executor.histogram import histogram_of
from turnstile.executor.leader.minutes import Minutes
from turnstile.executor.leader.records import MinuteRow
from turnstile.executor.queue_manager.definitions import Action, Resource
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.retries import RetryPolicy


class Counted(Scheduler):
    """A scheduler whose turns are counted from the beginning of a minute."""

    def __init__(self, *definitions: Action | Resource, workers: dict[str, int] | None = None) -> None:
        self.minutes: Minutes | None = None
        super().__init__(*definitions, workers=workers)
        self.minutes = Minutes(7, self.state, self.now)

    def turn(self, *inputs: Input, **more: int) -> list[int]:
        started = super().turn(*inputs, **more)
        if self.minutes is not None:
            self.minutes.add(self.state, self.out)
        return started

    def closed(self) -> dict[str, MinuteRow]:
        """Let the present minute end; return its rows by action."""
        self.now = self.now // 60 * 60 + 60
        self.turn()
        assert self.minutes is not None
        return {row.action_ref: row for row in self.minutes.take()}


def test_a_minute_has_what_was_admitted_started_and_ended_in_it() -> None:
    s = Counted(Action(ref="a", max_concurrent=1, runs=False), Action(ref="b"))
    first, second = s.submit("a"), s.submit("a")
    s.now = 10
    s.end_after(4, first)
    s.cancel(second)
    row = s.closed()["a"]
    assert (row.at, row.epoch, row.admitted, row.started) == (0, 7, 2, 1)
    assert row.ended == Counter({Status.COMPLETED: 1})
    s.now = 65
    s.turn(s.ended(second, Status.CANCELLED))
    (row,) = s.closed().values()
    assert (row.at, row.admitted, row.started, dict(row.ended)) == (60, 0, 0, {Status.CANCELLED: 1})
    assert s.closed() == {}


def test_a_start_is_counted_once_whether_it_was_reported_or_not() -> None:
    s = Counted(Action(ref="a", retry=RetryPolicy(max_attempts=2, delay_seconds=1)))
    reported, short, retried = (s.submit("a") for _ in range(3))
    s.now = 8
    s.report_start(reported)
    s.now = 9
    for each in (reported, short):
        s.turn(s.ended(each, started_at=8.0, completed_at=9.0))
    s.fail(retried, started_at=8.0, completed_at=8.5)
    s.wait(2)
    s.now = 15
    s.turn(s.ended(retried, started_at=12.0, completed_at=15.0))
    row = s.closed()["a"]
    assert (row.started, row.ended[Status.COMPLETED]) == (4, 3)
    # The second attempt waited for its retry, which is no time in a queue.
    assert row.waiting == 3 * histogram_of(8)
    assert row.running == 2 * histogram_of(1) + histogram_of(3)


def test_slots_count_for_as_long_as_they_are_in_use_also_while_nothing_happens() -> None:
    s = Counted(Action(ref="a"))
    first, second = s.submit("a"), s.submit("a")
    s.now = 15
    s.end_after(1, first)
    assert s.closed()["a"].slot_seconds == pytest.approx(60 + 15)
    row = s.closed()["a"]
    assert (row.slot_seconds, row.started) == (60, 0)
    s.wait(30)
    s.end(second)
    assert s.closed()["a"].slot_seconds == 30


def test_a_slot_is_in_use_while_its_holder_waits_at_a_later_gate_and_not_in_a_run() -> None:
    s = Counted(
        Resource(name="r", capacity=1), Action(ref="a", max_concurrent=3, uses=uses("r")),
        Action(ref="short", max_concurrent=1), workers={"w": 10},
    )  # fmt: skip
    s.submit_all("a", "a")
    assert s.closed()["a"].slot_seconds == 60 * s.state.actions["a"].held
    s.end_after(0.01, s.submit("short"))
    s.submit_all(*["short"] * 9)
    assert s.state.actions["short"].held > 1
    s.closed()
    assert s.closed()["short"].slot_seconds == 60


def test_a_new_leader_counts_the_rest_of_the_minute_in_rows_of_its_own() -> None:
    s = Counted(Action(ref="a"))
    s.submit("a")
    s.now = 20
    assert s.minutes is not None
    s.minutes.close(s.state, s.now)
    (before,) = s.minutes.take()
    s.minutes = Minutes(8, s.state, s.now)
    s.submit("a")
    after = s.closed()["a"]
    assert [(row.at, row.epoch, row.admitted) for row in (before, after)] == [(0, 7, 1), (0, 8, 1)]
    assert before.slot_seconds + after.slot_seconds == 20 + 2 * 40


def test_ten_thousand_keys_are_one_row() -> None:
    s = Counted(Action(ref="a", max_concurrent=1), workers={"w": 50})
    s.submit_all(*(f"a/{key}" for key in range(10_000)))
    row = s.closed()["a"]
    assert (row.admitted, row.slot_seconds) == (10_000, 60 * 50)
    assert len(s.closed()) == 1


def test_many_actions_are_inserted_by_several_turns() -> None:
    s = Counted(*(Action(ref=f"a{number}") for number in range(1200)), workers={})
    s.submit_all(*(f"a{number}" for number in range(1200)))
    assert len(s.closed()) == 1000
    assert s.minutes is not None
    assert (s.minutes.is_due, len(s.minutes.take()), s.minutes.is_due) == (True, 200, False)
