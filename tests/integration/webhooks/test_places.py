"""Who gets a place: each kind of receiver has a share of its own, and those that hang give theirs back."""

from datetime import UTC, datetime, timedelta

from turnstile.executor.webhooks import places
from turnstile.executor.webhooks.places import Due, Place, Places, Standing

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def due(origin: str, seconds: int = 0, count: int = 8) -> Due:
    return Due(origin=origin, due_at=NOON + timedelta(seconds=seconds), count=count)


def many(name: str, count: int, *, start: int = 0) -> list[Due]:
    return [due(f"{name}-{n}", start + n) for n in range(count)]


def take_all(chosen: dict[str, int], among: Places) -> list[Place]:
    return [among.take(origin) for origin, count in chosen.items() for _ in range(count)]


def after(among: Places, origin: str, seconds: float, *, answered: bool = True) -> None:
    among.leave(among.take(origin), seconds=seconds, answered=answered)


def test_a_new_one_gets_one_place_until_it_has_answered_and_then_eight() -> None:
    among = Places(64)
    chosen = among.choose([due("a")])
    assert chosen == {"a": 1}
    (place,) = take_all(chosen, among)
    assert among.choose([due("a")]) == {}
    among.leave(place, seconds=0.1, answered=True)
    assert among.choose([due("a")]) == {"a": 8}
    assert among.choose([due("a", count=3)]) == {"a": 3}


def test_however_many_new_and_silent_ones_there_are_a_prompt_one_finds_a_place() -> None:
    among = Places(64)
    after(among, "prompt", 0.1)
    for n in range(100):
        after(among, f"silent-{n}", 10.0, answered=False)
    everybody = [*many("silent", 100), *many("new", 1000), due("prompt", 9999)]
    chosen = among.choose(everybody)
    assert chosen["prompt"] == 8
    assert sum(count for origin, count in chosen.items() if origin.startswith("new")) == 32
    assert sum(count for origin, count in chosen.items() if origin.startswith("silent")) == 8


def test_of_new_ones_the_newest_and_the_oldest_go_first() -> None:
    chosen = Places(8).choose(many("n", 100))
    assert set(chosen) == {"n-99", "n-0", "n-98", "n-1"}


def test_one_that_hangs_moves_among_the_silent_and_gives_its_place_to_another_new_one() -> None:
    among = Places(8)
    held = take_all(among.choose(many("n", 4)), among)
    assert among.choose([due("later")]) == {}
    assert among.hangs(held[0])
    assert among.standing_of(held[0].origin) is Standing.SILENT
    assert among.choose([due("later")]) == {"later": 1}


def test_where_the_silent_ones_are_full_one_that_hangs_gives_its_place_back_and_waits_among_them() -> None:
    among = Places(8)
    held = take_all(among.choose(many("n", 4)), among)
    assert [among.hangs(place) for place in held] == [True, False, False, False]
    for place in held[1:]:
        among.leave(place, seconds=1.0, answered=False)
    assert among.choose(many("n", 4)) == {}
    among.leave(held[0], seconds=10.0, answered=False)
    assert sum(among.choose(many("n", 4)).values()) == 1


def test_a_silent_one_that_answers_is_served_like_any_other_that_answers() -> None:
    among = Places(64)
    after(among, "a", 10.0, answered=False)
    assert among.choose([due("a")]) == {"a": 1}
    after(among, "a", 3.0)
    assert among.standing_of("a") is Standing.SLOW
    after(among, "a", 0.1)
    assert among.choose([due("a")]) == {"a": 8}


def test_a_slow_one_keeps_its_place_for_as_long_as_it_takes() -> None:
    among = Places(8)
    after(among, "slow", 3.0)
    (place,) = take_all(among.choose([due("slow", count=1)]), among)
    assert among.hangs(place)
    assert among.standing_of("slow") is Standing.SLOW


def test_the_first_of_each_goes_before_the_second_of_any() -> None:
    among = Places(32)
    for origin in "abcd":
        after(among, origin, 0.1)
    assert among.choose([due(origin) for origin in "abcd"]) == dict.fromkeys("abcd", 2)


def test_what_was_never_posted_says_nothing_about_its_receiver() -> None:
    among = Places(8)
    among.leave(among.take("a"), seconds=None, answered=False)
    assert among.standing_of("a") is Standing.NEW


def test_a_flood_of_silent_ones_does_not_make_the_prompt_ones_forgotten() -> None:
    among = Places(8)
    after(among, "prompt", 0.1)
    for n in range(places._REMEMBERED_MAX + 10):
        after(among, f"silent-{n}", 10.0, answered=False)
    assert among.standing_of("prompt") is Standing.PROMPT
    assert among.standing_of("silent-0") is Standing.NEW


def test_few_places_are_still_one_for_each_kind() -> None:
    among = Places(1)
    after(among, "prompt", 0.1)
    after(among, "silent", 10.0, answered=False)
    assert among.choose([due("prompt"), due("silent"), due("new")]) == {"prompt": 1, "silent": 1, "new": 1}
