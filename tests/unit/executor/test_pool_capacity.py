"""The lead of a pool follows the pace of what it completes (P9)."""

import pytest

from turnstile.executor.pool_capacity import Leads, PoolCount, pause_seconds


def lead_after(*totals: int, every_seconds: float = 0.1, lead: int = 1) -> int:
    """Return the lead after looks at these totals."""
    leads = Leads(0.2)
    for number, total in enumerate(totals):
        lead = leads.note({1: PoolCount(total, lead, is_scarce=True)}, 100 + number * every_seconds).get(
            1, lead
        )
    return lead


def test_short_runs_have_a_lead_of_what_is_completed_in_a_fifth_of_a_second() -> None:
    assert 190 <= lead_after(*range(0, 3000, 100)) <= 240


def test_long_runs_that_end_together_have_nearly_none() -> None:
    assert lead_after(*(4 * (number // 4) for number in range(40))) <= 3


def test_a_lead_stays_while_the_pace_changes_little() -> None:
    assert lead_after(*range(0, 3000, 100), lead=220) == 220


def test_a_lead_ends_with_the_work() -> None:
    assert lead_after(*([500] * 30), lead=100) == 0


@pytest.mark.parametrize(
    ("before", "now", "is_soon"),
    [
        (PoolCount(5, 1, is_scarce=True), PoolCount(9, 1, is_scarce=True), True),
        (PoolCount(5, 1, is_scarce=False), PoolCount(9, 1, is_scarce=False), False),
        (PoolCount(9, 1, is_scarce=True), PoolCount(9, 1, is_scarce=True), False),
    ],
)
def test_the_next_refresh_is_soon_only_while_something_completes_and_capacity_is_scarce(
    before: PoolCount, now: PoolCount, is_soon: bool
) -> None:
    assert (pause_seconds({1: before}, {1: now}) < pause_seconds({}, {})) is is_soon
