"""Each class of receivers has a share of the permits, and hanging deliveries return theirs."""

from datetime import UTC, datetime, timedelta

from turnstile.executor.webhooks import concurrency
from turnstile.executor.webhooks.concurrency import DeliveryPermits, Due, Permit, Responsiveness

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def due(origin: str, seconds: int = 0, count: int = 8) -> Due:
    return Due(origin=origin, due_at=NOON + timedelta(seconds=seconds), count=count)


def many(name: str, count: int, *, start: int = 0) -> list[Due]:
    return [due(f"{name}-{n}", start + n) for n in range(count)]


def take_all(chosen: dict[str, int], among: DeliveryPermits) -> list[Permit]:
    return [among.acquire(origin) for origin, count in chosen.items() for _ in range(count)]


def after(among: DeliveryPermits, origin: str, seconds: float, *, answered: bool = True) -> None:
    among.release(among.acquire(origin), seconds=seconds, answered=answered)


def test_a_new_receiver_gets_one_permit_until_it_responds_and_then_eight() -> None:
    among = DeliveryPermits(64)
    chosen = among.choose([due("a")])
    assert chosen == {"a": 1}
    (permit,) = take_all(chosen, among)
    assert among.choose([due("a")]) == {}
    among.release(permit, seconds=0.1, answered=True)
    assert among.choose([due("a")]) == {"a": 8}
    assert among.choose([due("a", count=3)]) == {"a": 3}


def test_new_and_silent_receivers_take_no_permit_from_prompt_ones() -> None:
    among = DeliveryPermits(64)
    after(among, "prompt", 0.1)
    for n in range(100):
        after(among, f"silent-{n}", 10.0, answered=False)
    everybody = [*many("silent", 100), *many("new", 1000), due("prompt", 9999)]
    chosen = among.choose(everybody)
    assert chosen["prompt"] == 8
    assert sum(count for origin, count in chosen.items() if origin.startswith("new")) == 32
    assert sum(count for origin, count in chosen.items() if origin.startswith("silent")) == 8


def test_the_newest_and_the_oldest_new_receivers_come_first() -> None:
    chosen = DeliveryPermits(8).choose(many("n", 100))
    assert set(chosen) == {"n-99", "n-0", "n-98", "n-1"}


def test_a_hanging_delivery_moves_to_the_silent_share() -> None:
    among = DeliveryPermits(8)
    held = take_all(among.choose(many("n", 4)), among)
    assert among.choose([due("later")]) == {}
    assert among.keep_waiting(held[0])
    assert among.responsiveness_of(held[0].origin) is Responsiveness.SILENT
    assert among.choose([due("later")]) == {"later": 1}


def test_a_hanging_delivery_ends_where_the_silent_share_is_used_up() -> None:
    among = DeliveryPermits(8)
    held = take_all(among.choose(many("n", 4)), among)
    assert [among.keep_waiting(permit) for permit in held] == [True, False, False, False]
    for permit in held[1:]:
        among.release(permit, seconds=1.0, answered=False)
    assert among.choose(many("n", 4)) == {}
    among.release(held[0], seconds=10.0, answered=False)
    assert sum(among.choose(many("n", 4)).values()) == 1


def test_a_silent_receiver_that_responds_is_served_as_prompt_again() -> None:
    among = DeliveryPermits(64)
    after(among, "a", 10.0, answered=False)
    assert among.choose([due("a")]) == {"a": 1}
    after(among, "a", 3.0)
    assert among.responsiveness_of("a") is Responsiveness.SLOW
    after(among, "a", 0.1)
    assert among.choose([due("a")]) == {"a": 8}


def test_a_slow_delivery_keeps_its_permit() -> None:
    among = DeliveryPermits(8)
    after(among, "slow", 3.0)
    (permit,) = take_all(among.choose([due("slow", count=1)]), among)
    assert among.keep_waiting(permit)
    assert among.responsiveness_of("slow") is Responsiveness.SLOW


def test_the_first_of_each_goes_before_the_second_of_any() -> None:
    among = DeliveryPermits(32)
    for origin in "abcd":
        after(among, origin, 0.1)
    assert among.choose([due(origin) for origin in "abcd"]) == dict.fromkeys("abcd", 2)


def test_a_delivery_without_a_post_does_not_change_its_receiver() -> None:
    among = DeliveryPermits(8)
    among.release(among.acquire("a"), seconds=None, answered=False)
    assert among.responsiveness_of("a") is Responsiveness.NEW


def test_a_flood_of_silent_receivers_evicts_no_prompt_one() -> None:
    among = DeliveryPermits(8)
    after(among, "prompt", 0.1)
    for n in range(concurrency._REMEMBERED_MAX + 10):
        after(among, f"silent-{n}", 10.0, answered=False)
    assert among.responsiveness_of("prompt") is Responsiveness.PROMPT
    assert among.responsiveness_of("silent-0") is Responsiveness.NEW


def test_each_class_has_at_least_one_permit() -> None:
    among = DeliveryPermits(1)
    after(among, "prompt", 0.1)
    after(among, "silent", 10.0, answered=False)
    assert among.choose([due("prompt"), due("silent"), due("new")]) == {"prompt": 1, "silent": 1, "new": 1}
