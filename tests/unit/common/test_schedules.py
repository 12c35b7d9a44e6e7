"""Occurrences: what a definition means, also over changes of daylight saving time and long outages."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstile.common.domain.errors import Refusal
from turnstile.common.invalid_values import explained
from turnstile.common.requests import read_request, read_requested_body
from turnstile.common.schedules import ScheduleDefinition, advance, key_of, occurrence_of

_BERLIN = ZoneInfo("Europe/Berlin")


def schedule(**fields: Any) -> ScheduleDefinition:
    return ScheduleDefinition.model_validate({"name": "s", "action_ref": "a", **fields})


def at(text: str, zone: Any = UTC) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp())


@pytest.mark.parametrize(
    ("cron", "begin", "local"),
    [
        # The hour that does not exist: a fixed time runs right after it.
        ("30 2 * * *", "2026-03-28T12:00", ["29T03:00+02:00", "30T02:30+02:00"]),
        # The hour that comes twice: a fixed time runs once, an interval in both.
        ("30 2 * * *", "2026-10-24T12:00", ["25T02:30+02:00", "26T02:30+01:00"]),
        ("0 * * * *", "2026-10-25T01:30", ["25T02:00+02:00", "25T02:00+01:00", "25T03:00+01:00"]),
    ],
)
def test_daylight_saving_time_is_that_of_cron(cron: str, begin: str, local: list[str]) -> None:
    berlin = schedule(cron=cron, timezone="Europe/Berlin")
    found = list(berlin.preview(at(begin, _BERLIN), len(local)))
    shown = [datetime.fromtimestamp(each, _BERLIN).isoformat(timespec="minutes")[8:] for each in found]
    assert shown == local
    for before, after in pairwise(found):
        assert berlin.last_until(after - 1) == before
        assert berlin.last_until(after) == after


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "cron, every: give exactly one of them"),
        ({"cron": "0 6 * * *", "every": "1h"}, "cron, every: give exactly one of them"),
        ({"cron": "0 0 30 2 *"}, "it would never fire"),
        ({"cron": "0 25 * * *"}, "Bad hour"),
        (
            {"cron": "0 6 * * *", "timezone": "Europe/Atlantis"},
            "timezone: 'Europe/Atlantis' is not a time zone",
        ),
        ({"every": "15m", "jitter": -1}, "jitter: duration out of range"),
        ({"every": "15m", "jitter": "1h"}, "jitter: expected at most 1d, and at most `every`"),
        ({"every": "100ms"}, "every: expected whole seconds"),
        (
            {"every": 60, "start_at": "2026-01-02T00:00:00Z", "end_at": "2026-01-01T00:00:00Z"},
            "end_at: is before start_at",
        ),
        (
            {"cron": "0 0 29 2 *", "start_at": "2026-01-01T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"},
            "no occurrence is between start_at and end_at",
        ),
    ],
)
def test_what_can_never_run_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as invalid:
        schedule(**fields)
    assert sentence in explained(invalid.value, whole="definition", model=ScheduleDefinition)


def test_start_and_end_bound_the_occurrences() -> None:
    bounded = schedule(every=60, start_at="2026-01-01T00:00:30Z", end_at="2026-01-01T00:02:30Z")
    first = at("2026-01-01T00:00:30")
    assert list(bounded.preview(0, 10)) == [first, first + 60, first + 120]
    assert bounded.last_until(first + 10_000) == first + 120
    assert bounded.last_until(first - 1) is None


@given(
    every=st.integers(1, 300),
    outage=st.integers(0, 5000),
    most=st.integers(1, 5),
    policy=st.tuples(st.sampled_from(["none", "one", "all"]), st.integers(1, 20)),
    share=st.floats(0, 1),
)
def test_slices_of_a_turn_decide_each_occurrence_once_and_in_order(
    every: int, outage: int, most: int, policy: tuple[str, int], share: float
) -> None:
    catch_up, catch_up_max = policy
    made = schedule(every=every, catch_up=catch_up, catch_up_max=catch_up_max, jitter=share * every)
    begin = 1_000_000
    decided = begin
    found: list[int] = []
    now = float(begin + outage)
    while True:
        done = advance(made, decided, now, most)
        found += done.admitted
        assert len(done.admitted) <= most
        assert done.decided >= decided
        decided = done.decided
        assert done.wake_at is not None
        if done.wake_at > now:
            break
    due, at_ = [], begin
    while (following := made.next_after(at_)) is not None and made.due_at(following) <= now:
        due.append(following)
        at_ = following
    late = [each for each in due if each <= now - 60 - made.jitter]
    kept = {"none": 0, "one": 1, "all": catch_up_max}[catch_up]
    assert found == (late[-kept:] if kept else []) + due[len(late) :]


def test_an_outage_of_years_costs_no_more_than_what_it_admits() -> None:
    made = schedule(cron="* * * * *", catch_up="all", catch_up_max=3, timezone="Europe/Berlin")
    now = at("2036-05-01T12:00:30")
    done = advance(made, at("2026-05-01T12:00:00"), now, 100)
    # Those that are a minute late or more were missed; the newest is in time.
    assert done.admitted == tuple(
        at(f"2036-05-01T{each}:00") for each in ("11:57", "11:58", "11:59", "12:00")
    )
    assert done.missed == at("2036-05-01T11:56:00")


def test_jitter_is_the_same_wherever_it_is_computed() -> None:
    first, second = (schedule(every=600, jitter=300) for _ in range(2))
    dues = [first.due_at(each) for each in range(0, 60_000, 600)]
    assert dues == [second.due_at(each) for each in range(0, 60_000, 600)]
    assert all(0 <= due - each < 300 for due, each in zip(dues, range(0, 60_000, 600), strict=True))
    assert len(set(dues)) == len(dues)


def test_a_key_names_schedule_and_occurrence_and_is_reserved() -> None:
    key = key_of("nightly.report", at("2026-11-29T06:00:00"))
    assert key == "schedule:nightly.report:2026-11-29T06:00:00Z"
    assert occurrence_of(key) == ("nightly.report", datetime(2026, 11, 29, 6, tzinfo=UTC))
    assert occurrence_of("order-7") is None
    with pytest.raises(Refusal, match="those of schedules"):
        read_request({"action_ref": "a", "idempotency_key": key})
    with pytest.raises(Refusal, match="those of schedules"):
        read_requested_body(b'{"action_ref": "a", "idempotency_key": "%s"}' % key.encode())


def test_a_definition_is_stored_without_its_defaults() -> None:
    made = schedule(every=60, overlap="skip")
    assert made.stored() == {"name": "s", "action_ref": "a", "every": 60.0, "overlap": "skip"}
    assert schedule(**made.stored()) == made
