"""The bound on held messages follows the offers in them, and only where it proved wrong for an instant."""

import pytest

from turnstile.worker.message_bound import MessageBound, offers_per_message


@pytest.mark.parametrize(
    ("concurrency", "count"), [(1, 1), (4, 1), (7, 1), (8, 2), (10, 2), (32, 8), (10_000, 8)]
)
def test_a_worker_takes_a_quarter_of_its_slots_in_one_message(concurrency: int, count: int) -> None:
    assert offers_per_message(concurrency) == count


def full_of_packs(offers: int, slots: int = 40) -> MessageBound:
    """Return a bound fitted to messages that fill every slot."""
    bound = MessageBound()
    for _ in range(20):
        bound.note_message(offers)
    bound.lower(slots, held=slots // offers, free=slots % offers)
    return bound


@pytest.mark.parametrize("slots", [0, 1, 40])
def test_without_packs_the_bound_is_the_number_of_slots_whatever_is_free(slots: int) -> None:
    bound = MessageBound()
    assert not any(bound.raise_if_unused(slots, held=held, free=slots - held) for held in range(slots + 1))
    assert (bound.of(slots), bound.is_lowered) == (slots, False)
    bound.note_message(1)
    bound.lower(slots, held=slots, free=0)
    assert (bound.of(slots), bound.is_lowered) == (slots, False)


@pytest.mark.parametrize(("offers", "messages"), [(2, 20), (7, 5), (8, 5), (40, 1)])
def test_packs_lower_the_bound_to_what_fills_the_slots(offers: int, messages: int) -> None:
    assert full_of_packs(offers).of(40) == messages


def test_the_bound_follows_the_slots_and_leaves_one_message_where_there_is_a_slot() -> None:
    bound = full_of_packs(8)
    assert [bound.of(slots) for slots in (41, 40, 36, 35, 2, 1, 0)] == [6, 5, 1, 1, 1, 1, 0]


def test_slots_free_for_one_instant_change_nothing() -> None:
    bound = full_of_packs(8)
    assert not bound.raise_if_unused(40, held=5, free=12)
    assert not bound.raise_if_unused(40, held=5, free=0)
    assert not bound.raise_if_unused(40, held=5, free=12)
    # A message ended: the broker may send the next one.
    assert not bound.raise_if_unused(40, held=4, free=12)
    assert not bound.raise_if_unused(40, held=5, free=12)
    assert bound.of(40) == 5


@pytest.mark.parametrize(("recent", "bound_after"), [(8, 7), (1, 17)])
def test_slots_that_stay_free_raise_the_bound_by_messages_of_the_recent_size(
    recent: int, bound_after: int
) -> None:
    bound = full_of_packs(8)
    for _ in range(20):
        bound.note_message(recent)
    assert not bound.raise_if_unused(40, held=5, free=12)
    assert bound.raise_if_unused(40, held=5, free=16)
    assert bound.of(40) == pytest.approx(bound_after, abs=1)


def test_single_offers_after_packs_reach_every_slot_within_few_instants() -> None:
    bound = full_of_packs(8, slots=10_000)
    held = instants = 0
    while held < 10_000:
        for _ in range(bound.of(10_000) - held):
            bound.note_message(1)
        held = bound.of(10_000)
        bound.raise_if_unused(10_000, held=held, free=10_000 - held)
        instants += 1
        assert instants < 8
    assert not bound.is_lowered
