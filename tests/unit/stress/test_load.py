"""The plan of a load: pure, so nothing but values."""

import numpy as np
import pytest

from turnstile.stress.load import plan_orders
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import Load

MIX = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")


def load(executions: int = 1_000, *, actions: int = 10, keys: int = 0, submitters: int = 4) -> Load:
    return Load(executions=executions, mix=MIX, actions=actions, keys=keys, submitters=submitters)


def test_the_same_seed_gives_the_same_load() -> None:
    assert np.array_equal(plan_orders(load(), 7, "load"), plan_orders(load(), 7, "load"))


@pytest.mark.parametrize(("seed", "name"), [(8, "load"), (7, "other")])
def test_another_seed_or_stage_gives_another_load(seed: int, name: str) -> None:
    one, other = plan_orders(load(), 7, "load"), plan_orders(load(), seed, name)
    assert not np.array_equal(one["queue"], other["queue"])
    assert not np.array_equal(one["duration_us"], other["duration_us"])


@pytest.mark.parametrize(
    ("executions", "expected"),
    [(1_000, [700, 250, 50]), (10, [7, 3, 0]), (3, [2, 1, 0]), (1, [1, 0, 0]), (0, [0, 0, 0])],
)
def test_shares_are_exact_up_to_rounding(executions: int, expected: list[int]) -> None:
    durations = plan_orders(load(executions), 7, "load")["duration_us"]
    assert [int((durations == us).sum()) for us in (0, 20_000, 500_000)] == expected


def test_each_queue_and_each_submitter_gets_its_share() -> None:
    orders = plan_orders(load(1_003, actions=3, keys=5, submitters=4), 7, "load")
    for column, count in (("queue", 15), ("submitter", 4)):
        shares = np.bincount(orders[column], minlength=count)
        assert len(shares) == count
        assert max(shares) - min(shares) <= 1


def test_durations_are_spread_over_queues_and_submitters() -> None:
    orders = plan_orders(load(10_000, actions=4, submitters=4), 7, "load")
    short = orders["duration_us"] == 0
    for column in ("queue", "submitter"):
        shares = [short[orders[column] == number].mean() for number in range(4)]
        assert all(0.65 < share < 0.75 for share in shares), (column, shares)


def test_nothing_is_sent_yet() -> None:
    orders = plan_orders(load(10), 7, "load")
    assert not orders["sendings"].any()
    assert not orders["answer"].any()
    assert (orders["execution_id"] == -1).all()
    assert (orders["sent_at"] == np.iinfo(np.int64).max).all()


def test_a_duration_beyond_every_column_is_refused() -> None:
    with pytest.raises(ValueError, match="minutes at most"):
        plan_orders(Load(executions=1, mix=DurationMix.parse("100% 1h")), 7, "load")
