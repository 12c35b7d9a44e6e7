"""What a waiting list and a line must do, said naively: each runs the same operations as its reference."""

import random
from collections.abc import Iterable, Sequence

from tests.proof.queue_manager.recount import must
from turnstile.executor.queue_manager import waiting as waiting_module
from turnstile.executor.queue_manager.lines import TAG_SCALE, FairClock, Line
from turnstile.executor.queue_manager.waiting import Waiting, WaitingList

Operation = tuple[str, int]

LIST_OPERATIONS = ("append", "append", "append", "insert", "take", "remove", "position", "expire")
LINE_OPERATIONS = ("put", "put", "put", "put", "discard", "pass", "change", "again")


def check_waiting_list(operations: Iterable[Operation]) -> None:
    """Run operations on a list with tiny chunks, and on a dict. Raises Violation."""
    chunk_max, waiting_module._CHUNK_MAX = waiting_module._CHUNK_MAX, 4  # type: ignore[misc]
    try:
        _check_waiting_list(operations)
    finally:
        waiting_module._CHUNK_MAX = chunk_max  # type: ignore[misc]


def _check_waiting_list(operations: Iterable[Operation]) -> None:  # noqa: PLR0912
    waiting, expected, following = WaitingList(), dict[int, Waiting](), 1000
    for name, number in operations:
        ids = sorted(expected)
        chosen = ids[number % len(ids)] if ids else None
        match name:
            case "append":
                following += 1 + number % 3
                entry = Waiting(following, number % 7, float(number % 50))
                waiting.add(entry)
                expected[following] = entry
            case "insert" if number % 1000 not in expected:
                entry = Waiting(number % 1000, 0.0, float(number % 50))
                waiting.add(entry)
                expected[entry.id] = entry
            case "take" if ids:
                must("list", waiting.first() == ids[0], "first", waiting.first())
                must("list", waiting.first_queued_at() == expected[ids[0]].queued_at, "first instant")
                must("list", waiting.take_first() == expected.pop(ids[0]), "takes another one")
            case "remove":
                for each in (chosen, number % 1000):
                    if each is not None:
                        must("list", waiting.remove(each) == expected.pop(each, None), "removes", each)
            case "position":
                position = ids.index(chosen) + 1 if chosen is not None else None
                if chosen is not None:
                    must("list", waiting.position(chosen) == position, "position", waiting.position(chosen))
                    must("list", waiting.find(chosen) == expected[chosen], "finds", chosen)
                missing = number % 1000
                if missing not in expected:
                    must("list", waiting.position(missing) is None, missing, "has a position")
                    must("list", waiting.find(missing) is None, missing, "is found")
            case "expire":
                over = [i for i in ids if expected[i].expires_at <= number % 50]
                must("list", waiting.expired(number % 50, 3) == over[:3], "expires", over)
                for each in over[:3]:
                    must("list", waiting.remove(each) == expected.pop(each), "removes", each)
                later = min((w.expires_at for w in expected.values()), default=float("inf"))
                must("list", waiting.soonest <= later, "forgets the next expiry")
                if len(over) < 3:
                    must("list", waiting.soonest > number % 50, "looks again at", waiting.soonest)
            case _:
                pass
        must("list", list(waiting) == sorted(expected), "holds", list(waiting))
        must("list", list(waiting.entries()) == [expected[i] for i in sorted(expected)], "entries")
        must("list", len(waiting) == len(expected) and bool(waiting) == bool(expected), "length")


def check_line(operations: Iterable[Operation], *, is_fair: bool) -> None:
    """Run operations on two lines that share a clock, and sort their members anew each time. Raises
    Violation."""
    clock = FairClock() if is_fair else None
    lines = Line[str](clock), Line[str](clock)
    members: tuple[dict[str, tuple[str, int, int]], dict[str, tuple[str, int, int]]] = ({}, {})
    earlier: dict[tuple[int, str], tuple[str, int, int]] = {}
    virtual, finish = dict[int, int](), dict[tuple[int, str], int]()

    def rank(member: tuple[str, int, int]) -> tuple[int, int, int]:
        flow, priority, ticket = member
        tag = max(virtual.get(priority, 0), finish.get((priority, flow), 0)) if is_fair else 0
        return priority, tag, ticket

    for step, (name, number) in enumerate(operations):
        key, flow, place = "abcdef"[number % 6], "xyz"[number // 6 % 3], number // 18 % 2
        line, here = lines[place], members[place]
        match name:
            case "again" if key in here and (place, key) in earlier:
                # What it stood for comes back to the front, as after a retry.
                here[key], earlier[place, key] = earlier[place, key], here[key]
                line.put(key, *here[key])
            case "put" | "change" if name == "put" or key in here:
                if key in here:
                    earlier[place, key] = here[key]
                here[key] = (flow, 1 + number // 36 % 2, step)
                line.put(key, *here[key])
            case "discard":
                line.discard(key)
                here.pop(key, None)
            case "pass" if here:
                first = min(here, key=lambda each: rank(here[each]))
                flow, priority, _ = here[first]
                units, weight = 1 + number % 3, 1 + number % 2
                if clock is not None:
                    clock.charge(priority, flow, units, weight)
                    virtual[priority] = rank(here[first])[1]
                    finish[priority, flow] = virtual[priority] + units * TAG_SCALE // weight
                line.discard(first)
                del here[first]
            case _:
                pass
        for each, expected in zip(lines, members, strict=True):
            entry = each.first()
            order = sorted(expected, key=lambda member: rank(expected[member]))
            must("line", (entry and entry.member) == (order[0] if order else None), "first is not", order[:1])
            must("line", [e.member for e in each.in_order()] == order, "order is not", order)
            must("line", {*each.entries} == {*order}, "members", order)
            must("line", len(each.entries) == len(order), "length")


def seeded(seed: int, names: Sequence[str], count: int = 500) -> list[Operation]:
    dice = random.Random(seed)
    return [(dice.choice(names), dice.randrange(5000)) for _ in range(count)]
