"""The gates of a load, and their changes: a pure function of the seed.

In: a seed, the number of actions and keys, a duration. Out: definitions of resources and actions with 1 to 5
units, totals, rates and fair order, and changes of all of them; the last ones restore what was there.
"""

import random
from collections.abc import Iterator
from typing import Final

from turnstile.stress.scenario import DefinitionChange, Fields, Gates
from turnstile.stress.trace import action_ref

_RESOURCES: Final[dict[str, Fields]] = {
    "stress-1": {"capacity": 8, "rank": 1, "order": "fair"},
    "stress-2": {"capacity": 10, "rank": 2},
    "stress-3": {"capacity": 8, "rank": 3, "order": "fair", "rate": {"starts": 30, "per": 1}},
    "stress-4": {"capacity": 12, "rank": 4, "order": "fair"},
    "stress-5": {"capacity": None, "rate": {"starts": 40, "per": 1}},
}
"""About twice what the default rate needs: executions wait after a change, and catch up."""
_UNITS_MAX: Final = 5
_TOTAL: Final = 3
_RATE: Final = {"starts": 6, "per": 1}
_FIRST_SECONDS: Final = 1.0
_CHANGES_MIN: Final = 6
_CHANGE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.8
_LAST_SHARE: Final = 0.85
"""Of the duration: then everything is as it was."""


def plan_gates(seed: int, *, actions: int, keys: int, seconds: float) -> Gates:
    """Return the gates of a load of this duration."""
    definitions = tuple(_action(number) for number in range(actions))
    own_keys = tuple(_keys(actions, keys))
    before = {f"resources/{name}": fields for name, fields in _RESOURCES.items()}
    before |= {f"actions/{action_ref(number)}": fields for number, fields in enumerate(definitions)}
    before |= {each.path: each.fields for each in own_keys}
    changes = list(_changes(random.Random(f"{seed} gates"), actions, keys, _LAST_SHARE * seconds))
    changed = sorted({change.path for change in changes})
    restored = [
        DefinitionChange(at_seconds=_LAST_SHARE * seconds, path=path, fields={**before[path], **_open(path)})
        for path in changed
    ]
    return Gates(resources=_RESOURCES, actions=definitions, keys=own_keys, changes=tuple(changes + restored))


def _action(number: int) -> Fields:
    """Return the gates of an action: all use a resource, a third two of them, others have totals or rates."""
    names = list(_RESOURCES)
    first, second = names[number % len(names)], names[(number + 2) % len(names)]
    units = 1 + number // len(names) % _UNITS_MAX
    uses = [{"resource": first, "units": units, "weight": 1 + number % 4}]
    if number % 3 == 0:
        uses.append({"resource": second, "units": 1, "weight": 1})
    has_total = number % 3 == 1
    return {
        "max_concurrent": 1 + number % 3,
        "max_concurrent_total": _TOTAL if has_total else None,
        "order": "fair" if has_total else "arrival",
        "rate": _RATE if number % 6 == 2 else None,
        "uses": uses,
    }


def _keys(actions: int, keys: int) -> Iterator[DefinitionChange]:
    """Yield the settings of one key of each second action: a limit of its own, or a weight."""
    for number in range(0, actions, 2):
        settings: Fields = {"weight": 4} if number % 4 else {"max_concurrent": 4}
        yield _of_key(number, number % keys, settings, at_seconds=0.0)


def _of_key(action: int, key: int, settings: Fields, *, at_seconds: float) -> DefinitionChange:
    path = f"actions/{action_ref(action)}/keys/{key}"
    return DefinitionChange(at_seconds=at_seconds, path=path, fields=settings)


def _open(path: str) -> Fields:
    return {} if "/keys/" in path else {"paused": False}


def _changes(rng: random.Random, actions: int, keys: int, until: float) -> Iterator[DefinitionChange]:
    """Yield changes in the order of their times: one kind after the other, each of a random subject."""
    count = max(_CHANGES_MIN, round((until - _FIRST_SECONDS) / _CHANGE_SECONDS))
    step = (until - _FIRST_SECONDS) / count
    for index in range(count):
        at = round(_FIRST_SECONDS + index * step + rng.uniform(0.0, step / 4), 3)
        limited = [name for name, fields in _RESOURCES.items() if fields["capacity"]]
        resource = rng.choice(limited)
        capacity = _RESOURCES[resource]["capacity"]
        of_resource = f"resources/{resource}"
        match index % 6:
            case 0:
                # Not below the units of an action: its requests would be refused.
                lowered = max(capacity // 2, _UNITS_MAX)
                yield DefinitionChange(at_seconds=at, path=of_resource, fields={"capacity": lowered})
            case 1:
                yield DefinitionChange(at_seconds=at, path=of_resource, fields={"capacity": 2 * capacity})
            case 2:
                yield DefinitionChange(at_seconds=at, path=of_resource, fields={"paused": True})
                at = round(at + min(_PAUSE_SECONDS, step / 2), 3)
                yield DefinitionChange(at_seconds=at, path=of_resource, fields={"paused": False})
            case 3:
                number = rng.choice(range(0, actions, 2))
                settings: Fields = {"max_concurrent": rng.randint(1, 4), "weight": rng.randint(1, 4)}
                yield _of_key(number, number % keys, settings, at_seconds=at)
            case 4:
                rated = [name for name, fields in _RESOURCES.items() if "rate" in fields]
                path = f"resources/{rng.choice(rated)}"
                fields: Fields = {"rate": {"starts": rng.randint(20, 50), "per": 1}}
                yield DefinitionChange(at_seconds=at, path=path, fields=fields)
            case _:
                path = f"actions/{action_ref(rng.choice(range(1, actions, 3)))}"
                fields = {"max_concurrent_total": rng.choice([1, 2, 4, 5])}
                yield DefinitionChange(at_seconds=at, path=path, fields=fields)
