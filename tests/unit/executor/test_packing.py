"""Offers share messages only in large batches, for pools whose workers all take them, spread over these."""

import pytest

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.executor.packing import OFFERS_MAX, Packing
from turnstile.executor.results import Grant


def grants(count: int, pool: str = "default", *, first: int = 1) -> list[Grant]:
    return [
        Grant(execution_id=ExecutionId(first + number), attempt=Attempt(1), action_ref="a", pool=pool)
        for number in range(count)
    ]


def sizes(packing: Packing, granted: list[Grant]) -> list[int]:
    return [len(message) for message in packing.messages(granted)]


def packing_for(workers: int, offers_per_message: int) -> Packing:
    packing = Packing()
    packing.note_workers({"default": (workers, offers_per_message)})
    return packing


@pytest.mark.parametrize(
    ("workers", "offers_per_message", "granted", "largest"),
    [
        (2, 8, 15, 1), (2, 8, 16, 4), (2, 8, 20, 5), (2, 8, 32, 8), (2, 8, 1000, OFFERS_MAX),
        (2, 100, 1000, OFFERS_MAX), (2, 3, 1000, 3), (2, 1, 1000, 1), (2, 0, 1000, 1),
        (1, 8, 16, 8), (8, 8, 16, 1), (50, 8, 1000, OFFERS_MAX), (200, 8, 1000, 3),
    ],
)  # fmt: skip
def test_a_message_carries_no_more_than_each_worker_takes_and_leaves_two_for_each(
    workers: int, offers_per_message: int, granted: int, largest: int
) -> None:
    made = sizes(packing_for(workers, offers_per_message), grants(granted))
    assert max(made) == largest
    assert set(made[:-1]) <= {largest}
    assert sum(made) == granted
    assert largest == 1 or len(made) >= min(2 * workers, granted // OFFERS_MAX)


def test_a_pool_without_a_known_worker_gets_each_offer_alone() -> None:
    assert sizes(Packing(), grants(100)) == [1] * 100
    assert sizes(packing_for(2, 8), grants(100, "gpu")) == [1] * 100


def test_each_pool_of_a_batch_is_packed_by_its_own_number_and_in_its_order() -> None:
    packing = packing_for(2, 8)
    batch = [*grants(10, "gpu"), *grants(32, first=11), *grants(5, "gpu", first=43)]
    messages = list(packing.messages(batch))
    assert [len(message) for message in messages] == [1] * 15 + [8] * 4
    for pool in ("gpu", "default"):
        made = [grant for message in messages for grant in message if grant.pool == pool]
        assert made == [grant for grant in batch if grant.pool == pool]


def test_the_largest_number_of_offers_behind_a_message_is_known_for_each_pool() -> None:
    packing = packing_for(2, 5)
    assert packing.offers_max("default") == 5
    assert packing.offers_max("other") == 1
    packing.note_workers({})
    assert packing.offers_max("default") == 1
