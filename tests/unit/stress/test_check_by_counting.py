"""The rules over whole columns agree with the same rules counted one by one."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stress.histories import MILLISECOND, Life, at, hand_made
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording


@st.composite
def lives(draw: st.DrawFn) -> Life:
    since = draw(st.integers(0, 12))
    granted = draw(st.one_of(st.none(), st.integers(since, 15)))
    ended = None if granted is None else granted + draw(st.integers(1, 9))
    return Life(
        id=draw(st.integers(1, 40)),
        queue=draw(st.integers(0, 2)),
        since=since,
        granted=granted,
        ended=ended,
        worker=draw(st.integers(0, 1)),
    )


recordings = st.builds(
    lambda many, limit: hand_made(*many, limit=limit, actions=3),
    st.lists(lives(), max_size=25, unique_by=lambda life: life.id),
    st.integers(1, 4),
)


def findings(recording: Recording) -> dict[Rule, Finding]:
    return {finding.rule: finding for finding in check_recording(recording).findings}


def concurrency_at_starts(rows: "list[tuple[int, int, int]]") -> list[int]:
    """Count for each interval itself and those that overlap its start."""
    return [
        1
        + sum(
            other_queue == queue and (start, n) < (at, row) and end > at
            for n, (other_queue, start, end) in enumerate(rows)
        )
        for row, (queue, at, _) in enumerate(rows)
    ]


def all_at_one_worker(recording: Recording) -> list[bool]:
    """Return for each grant whether all that its queue holds after its commit is at its worker."""
    rows = recording.attempts
    found = []
    for row in rows:
        at, worker = row["granted_at"], row["worker"]
        held = (rows["queue"] == row["queue"]) & (rows["granted_at"] <= at) & (rows["ended_at"] > at)
        found.append(bool((rows["worker"][held] == worker).all()))
    return found


def intervals(recording: Recording, table: str, start: str, end: str) -> "list[tuple[int, int, int]]":
    rows = getattr(recording, table)
    return list(zip(rows["queue"].tolist(), rows[start].tolist(), rows[end].tolist(), strict=True))


@given(recording=recordings)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_limit_is_broken_as_often_as_counting_says(recording: Recording) -> None:
    limit = recording.scenario.limit or 0
    held = concurrency_at_starts(intervals(recording, "attempts", "granted_at", "ended_at"))
    is_run = all_at_one_worker(recording)
    ran = concurrency_at_starts(intervals(recording, "runs", "started_at", "stopped_at"))
    assert findings(recording)[Rule.LIMIT_HELD].broken == sum(
        count > limit and not alone for count, alone in zip(held, is_run, strict=True)
    )
    assert findings(recording)[Rule.LIMIT_RUN].broken == sum(count > limit for count in ran)


@given(recording=recordings)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_grants_overtake_as_often_as_counting_says(recording: Recording) -> None:
    granted = recording.attempts
    passed = 0
    for one in granted:
        behind = (granted["queue"] == one["queue"]) & (granted["execution_id"] < one["execution_id"])
        waited = (granted["waiting_since"] <= one["granted_at"]) & (granted["granted_at"] > one["granted_at"])
        left = recording.executions[~np.isin(recording.executions["execution_id"], granted["execution_id"])]
        never = (left["queue"] == one["queue"]) & (left["execution_id"] < one["execution_id"])
        passed += bool((behind & waited).any() or (never & (left["created_at"] <= one["granted_at"])).any())
    assert findings(recording)[Rule.GRANTED_IN_ORDER].broken == passed


@given(recording=recordings, seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_requests_arrive_after_later_ones_as_often_as_counting_says(recording: Recording, seed: int) -> None:
    random = np.random.default_rng(seed)
    executions, orders = recording.executions.copy(), recording.orders.copy()
    executions["number"] = random.permutation(executions["number"])
    orders["submitter"] = random.integers(3, size=len(orders))
    ids = dict(zip(executions["number"].tolist(), executions["execution_id"].tolist(), strict=True))
    late = sum(
        any(ids[before] > ids[number] for before in range(number) if senders[before] == senders[number])
        for senders in [orders["submitter"].tolist()]
        for number in range(len(orders))
    )
    assert (
        findings(replace(recording, executions=executions, orders=orders))[Rule.ADMITTED_IN_ORDER].broken
        == late
    )


@given(recording=recordings)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_slots_are_idle_for_as_long_as_counting_each_millisecond_says(recording: Recording) -> None:
    allowed_ms = 2
    last_ms = (recording.ended_at - recording.began_at) // MILLISECOND
    granted = recording.attempts
    left = recording.executions[~np.isin(recording.executions["execution_id"], granted["execution_id"])]
    found = False
    for queue in range(3):
        own, stuck = granted[granted["queue"] == queue], left[left["queue"] == queue]
        grants = [(int(instant) - at(0)) // MILLISECOND for instant in own["granted_at"]]
        waits, free = [], []
        for now in map(at, range(last_ms)):
            waiting = int(((own["waiting_since"] <= now) & (own["granted_at"] > now)).sum())
            waits.append(waiting + int((stuck["created_at"] <= now).sum()) > 0)
            held = int(((own["granted_at"] <= now) & (own["ended_at"] > now)).sum())
            free.append((recording.scenario.limit or 0) - held)
        # From `since` to `until` an execution waited, and not all slots that were free at first were granted.
        found |= any(
            all(waits[since:until]) and sum(since < grant < until for grant in grants) < free[since]
            for since in range(last_ms)
            for until in range(since + allowed_ms + 1, last_ms + 1)
        )
    strict = replace(recording, idle_allowed_seconds=allowed_ms / 1000)
    assert (findings(strict)[Rule.NO_IDLE_SLOT].broken > 0) == found
