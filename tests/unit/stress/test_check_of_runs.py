"""The check of runs: what a worker started itself, of what it was granted beyond the limit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from tests.unit.stress.histories import Life, at, broken, fault, hand_made
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import LimitChange, Outcome, Recording
from turnstile.stress.scenario import FaultKind

Lives = list[Life]


def in_a_run(count: int = 8, *, limit: int = 2, since: float = 1.0) -> Lives:
    """Return executions that were granted together to one worker; each takes 10 ms, `limit` at once."""
    lives = []
    for n in range(count):
        start = since + 1 + 10 * (n // limit)
        lives.append(Life(id=n + 1, since=0, granted=since, start=start, stop=start + 9, ended=start + 9.5))
    return lives


def recorded(lives: Lives, **rest: Any) -> Recording:
    return hand_made(*lives, **{"limit": 2, **rest})


def one_too_many(lives: Lives) -> None:
    lives[4] = replace(lives[4], start=lives[3].start)


def one_too_many_at_another_worker(lives: Lives) -> None:
    lives[6] = replace(lives[6], worker=1)


def out_of_order(lives: Lives) -> None:
    lives[2], lives[5] = (
        replace(lives[2], start=lives[5].start, stop=lives[5].stop, ended=lives[5].ended),
        replace(lives[5], start=lives[2].start, stop=lives[2].stop, ended=lives[2].ended),
    )


def behind_what_never_starts(lives: Lives) -> None:
    lives[2] = replace(lives[2], start=9_000, stop=9_001, ended=None, outcome=Outcome.OPEN)


def after_a_recall(lives: Lives) -> None:
    # It came back and was granted again; its worker ran it under the old grant too.
    lives.append(Life(id=8, since=25, granted=60, ended=70, attempt=2))
    lives[7] = replace(lives[7], ended=25, outcome=Outcome.RETURNED)


def under_an_old_leader(lives: Lives) -> None:
    # Its grant was never committed: the history does not have it.
    lives[7] = replace(lives[7], since=40, granted=60, start=31, stop=40, ended=70)


def at_two_workers_at_once(lives: Lives) -> None:
    lives[7] = replace(lives[7], ended=20, outcome=Outcome.RETURNED)
    lives.append(Life(id=8, since=20, granted=21, start=31, stop=40, ended=41, attempt=2, worker=1))


VIOLATIONS: Final[dict[Callable[[Lives], None], tuple[Rule, str]]] = {
    one_too_many: (Rule.LIMIT_RUN, "3 were running, the limit was 2"),
    one_too_many_at_another_worker: (Rule.LIMIT_HELD, "7 were held, the limit was 2"),
    out_of_order: (Rule.STARTED_IN_ORDER, "execution 3 in queue 0 started at"),
    behind_what_never_starts: (Rule.STARTED_IN_ORDER, "execution 3 in queue 0 started at 9.000 s"),
    after_a_recall: (Rule.NOTHING_UNEXPECTED, "but had ended at 0.025 s"),
    under_an_old_leader: (Rule.NOTHING_UNEXPECTED, "before its reported start at"),
    at_two_workers_at_once: (Rule.NOTHING_UNEXPECTED, "but had ended at 0.020 s"),
}


@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_a_run_breaks_no_rule(limit: int | None) -> None:
    assert broken(recorded(in_a_run(limit=limit or 8), limit=limit)) == set()


@pytest.mark.parametrize("breaks", VIOLATIONS, ids=lambda breaks: breaks.__name__)
def test_each_violation_in_a_run_is_found(breaks: Callable[[Lives], None]) -> None:
    lives = in_a_run()
    breaks(lives)
    rule, text = VIOLATIONS[breaks]
    found = {finding.rule: finding.examples for finding in check_recording(recorded(lives)).broken}
    assert any(text in example for example in found.get(rule, ())), found


def test_what_is_started_twice_in_a_run_is_found() -> None:
    recording = recorded(in_a_run())
    twice = recording.runs[5:6].copy()
    twice["started_at"], twice["stopped_at"] = at(50), at(51)
    recording = replace(recording, runs=np.concatenate([recording.runs, twice]))
    assert Rule.NOTHING_TWICE in broken(recording)


def test_a_start_without_a_grant_in_the_history_is_found() -> None:
    recording = recorded(in_a_run())
    assert broken(replace(recording, attempts=recording.attempts[:-1])) == {Rule.NOTHING_UNEXPECTED}


def test_without_a_limit_each_worker_starts_in_order_and_two_need_not() -> None:
    first = Life(id=1, since=0, granted=1, start=6, stop=7, ended=8)
    second = Life(id=2, since=0, granted=1, start=5, stop=7, ended=8)
    assert broken(hand_made(first, replace(second, worker=1), limit=None)) == set()
    assert broken(hand_made(first, second, limit=None)) == {Rule.STARTED_IN_ORDER}


def test_at_limit_0_nothing_is_granted_to_a_run() -> None:
    assert Rule.LIMIT_HELD in broken(recorded(in_a_run(2), limit=0))


def test_a_run_is_bounded() -> None:
    assert broken(recorded(in_a_run(514))) == set()
    assert broken(recorded(in_a_run(515))) == {Rule.LIMIT_HELD}


def joined(granted: float, start: float) -> set[Rule]:
    """Return what is broken by one that returned and joins a long run at its head."""
    lives = in_a_run(801, limit=2)[1:]
    before = Life(id=1, since=0, granted=0.5, start=0.6, stop=0.9, ended=1.0, outcome=Outcome.RETRIED)
    again = Life(id=1, since=granted, granted=granted, start=start, stop=start, ended=start + 1, attempt=2)
    return broken(recorded([before, again, *lives])) - {Rule.LIMIT_RUN, Rule.LIMIT_HELD}


def test_what_comes_later_joins_a_run_at_its_place_and_waits_for_a_bounded_time() -> None:
    assert joined(granted=100, start=300) == set()
    assert joined(granted=100, start=2_099) == set()
    assert joined(granted=100, start=2_200) == {Rule.STARTED_IN_ORDER}


def lowered(starts_until: float, **rest: Any) -> set[Rule]:
    """Return what is broken if two still run at once until then, and the limit was lowered to 1 at 100 ms."""
    count = round(starts_until / 10) * 2
    change = LimitChange(action=0, limit=1, asked_at=at(90), answered_at=at(100))
    return broken(recorded(in_a_run(count), limit_changes=(change,), **rest))


def test_after_a_lowered_limit_more_start_only_until_the_worker_must_know_it() -> None:
    assert lowered(2_000) == set()
    assert lowered(2_200) == {Rule.LIMIT_RUN}
    assert lowered(2_200, faults=(fault(FaultKind.KILL_EXECUTOR, 500, 600),)) == set()


def test_what_was_granted_after_a_lowered_limit_came_with_it() -> None:
    change = LimitChange(action=0, limit=1, asked_at=at(0), answered_at=at(0.5))
    assert Rule.LIMIT_RUN in broken(recorded(in_a_run(), limit_changes=(change,)))


def idle(start: float, **rest: Any) -> set[Rule]:
    """Return what is broken if half of the slots stay free until then, and the run waits at its worker."""
    lives = [*in_a_run(4), Life(id=5, since=0, granted=1, start=22, stop=start, ended=start)]
    waiting = [Life(id=n, since=0, granted=1, start=start, stop=start + 1, ended=start + 1) for n in (6, 7)]
    return broken(recorded([*lives, *waiting], **rest))


def test_a_worker_uses_the_slots_of_its_run() -> None:
    assert idle(2_000) == set()
    assert idle(2_200) == {Rule.NO_IDLE_SLOT}
    assert idle(2_200, faults=(fault(FaultKind.KILL_EXECUTOR, 1_000, 1_000),)) == set()


def test_a_raised_limit_reaches_the_worker_of_a_run() -> None:
    lives = [
        Life(id=n, since=0, granted=1, start=500 * n - 490, stop=500 * n, ended=500 * n + 5)
        for n in range(1, 9)
    ]
    beside = Life(id=20, since=0, granted=1, start=10, stop=20, ended=25, queue=1)
    raised = LimitChange(action=0, limit=2, asked_at=at(100), answered_at=at(110))
    assert broken(hand_made(*lives, beside, actions=2)) == set()
    found = broken(hand_made(*lives, beside, actions=2, limit_changes=(raised,)))
    assert found == {Rule.NO_IDLE_SLOT}


def test_a_full_worker_leaves_no_slot_idle() -> None:
    others = [Life(id=n, since=0, granted=1, start=2, stop=8_000, ended=8_001, queue=1) for n in (20, 21)]
    waiting = Life(id=1, since=0, granted=1, start=8_002, stop=8_003, ended=8_004)
    assert broken(hand_made(waiting, *others, limit=2, actions=2)) == set()
    elsewhere = replace(waiting, worker=1)
    at_the_end = Life(id=2, since=0, granted=1, start=8_002, stop=8_003, ended=8_004, worker=1)
    found = broken(hand_made(elsewhere, at_the_end, *others, limit=2, actions=2))
    assert found == {Rule.NO_IDLE_SLOT}
