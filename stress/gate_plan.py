"""Plans the gates of a load and their changes: a pure function of the seed.

Definitions of resources and actions with 1 to 5 units, totals, rates and fair order. The last changes restore
what was there.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from turnstile.stress.scenario import DefinitionChange, Fields, Gates
from turnstile.stress.trace import POOL, action_ref

_RESOURCES: Final[dict[str, Fields]] = {
    "stress-1": {"capacity": 8, "rank": 1, "order": "fair"},
    "stress-2": {"capacity": 10, "rank": 2},
    "stress-3": {"capacity": 8, "rank": 3, "order": "fair", "rate": {"starts": 30, "per": 1}},
    "stress-4": {"capacity": 12, "rank": 4, "order": "fair"},
    "stress-5": {"capacity": None, "rate": {"starts": 40, "per": 1}},
}
"""About twice what the default rate needs: executions wait after a change, and catch up."""
_LIMITED: Final = [name for name, fields in _RESOURCES.items() if fields["capacity"]]
_RATED: Final = [name for name, fields in _RESOURCES.items() if "rate" in fields]
_UNITS_MAX: Final = 5
_WEIGHT_MAX: Final = 5
_POOL_PATH: Final = f"pools/{POOL}"
_TOTAL: Final = 3
_RATE: Final = {"starts": 6, "per": 1}
_FIRST_CHANGE_SECONDS: Final = 1.0
_CHANGE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.8
_LAST_SHARE: Final = 0.85
"""Share of the duration after which the limits and capacities have their first values again."""


def plan_gates(seed: int, *, actions: int, keys: int, seconds: float) -> Gates:
    """Return the gates of a load of this duration."""
    definitions = tuple(_action(number) for number in range(actions))
    own_keys = tuple(_keys(actions, keys))
    before: dict[str, Fields] = {
        **{f"resources/{name}": fields for name, fields in _RESOURCES.items()},
        **{_path(number): fields for number, fields in enumerate(definitions)},
        **{each.path: each.fields for each in own_keys},
        _POOL_PATH: {"weights": dict.fromkeys(map(action_ref, range(actions)), 1)},
    }
    until = _LAST_SHARE * seconds
    changes = list(_changes(random.Random(f"{seed} gates"), actions, keys, until))
    restored = [
        DefinitionChange(
            at_seconds=until,
            path=path,
            fields=before[path] if "/keys/" in path else {**before[path], "paused": False},
        )
        for path in sorted({change.path for change in changes})
    ]
    return Gates(resources=_RESOURCES, actions=definitions, keys=own_keys, changes=tuple(changes + restored))


def _action(number: int) -> Fields:
    """Return the gates of an action: a sixth have a limit only, and wait for it and for a worker.

    The others use a resource, of all a third two of them; a third have totals, and a sixth rates.
    """
    names = list(_RESOURCES)
    group = number // len(names)
    first, second = names[number % len(names)], names[(number + 2) % len(names)]
    uses = [{"resource": first, "units": 1 + group % _UNITS_MAX, "weight": 1 + 2 * group % _WEIGHT_MAX}]
    if number % 6 == 5:
        uses = []
    elif number % 3 == 0:
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
        yield DefinitionChange(at_seconds=0.0, path=_path(number, number % keys), fields=settings)


def _path(action: int, key: int | None = None) -> str:
    return f"actions/{action_ref(action)}" + ("" if key is None else f"/keys/{key}")


def _changes(rng: random.Random, actions: int, keys: int, until: float) -> Iterator[DefinitionChange]:
    """Yield changes in the order of their times: one kind after the other, each of a random subject."""
    count = max(len(_CHANGING), round((until - _FIRST_CHANGE_SECONDS) / _CHANGE_SECONDS))
    step = (until - _FIRST_CHANGE_SECONDS) / count
    for index in range(count):
        at = round(_FIRST_CHANGE_SECONDS + index * step + rng.uniform(0.0, step / 4), 3)
        path, fields = _CHANGING[index % len(_CHANGING)](rng, actions, keys)
        yield DefinitionChange(at_seconds=at, path=path, fields=fields)
        if fields.get("paused"):
            at = round(at + min(_PAUSE_SECONDS, step / 2), 3)
            yield DefinitionChange(at_seconds=at, path=path, fields={"paused": False})


_Changed: TypeAlias = tuple[str, Fields]
"""The path of a definition, and its new fields."""
_Changing: TypeAlias = Callable[[random.Random, int, int], _Changed]
"""Changes a definition at random; the numbers are those of actions and of keys."""


def _of_resource(names: list[str], fields_of: Callable[[random.Random, Fields], Fields]) -> _Changing:
    def change(rng: random.Random, actions: int, keys: int) -> _Changed:
        name = rng.choice(names)
        return f"resources/{name}", fields_of(rng, _RESOURCES[name])

    return change


def _of_action(
    is_fit: Callable[[Fields], object], fields_of: Callable[[random.Random, Fields], Fields]
) -> _Changing:
    """Change an action whose definition is fit, or the first one where there is none."""

    def change(rng: random.Random, actions: int, keys: int) -> _Changed:
        number = rng.choice([number for number in range(actions) if is_fit(_action(number))] or [0])
        return _path(number), fields_of(rng, _action(number))

    return change


def _other_use(field: str, most: int) -> _Changing:
    """Give an action another number in this field of its first resource."""

    def fields_of(rng: random.Random, action: Fields) -> Fields:
        first, *rest = action["uses"]
        other = rng.choice([each for each in range(1, most + 1) if each != first[field]])
        return {"uses": [{**first, field: other}, *rest]}

    return _of_action(lambda action: action["uses"], fields_of)


def _settings_of_key(rng: random.Random, actions: int, keys: int) -> _Changed:
    number = rng.choice(range(0, actions, 2))
    settings = {"max_concurrent": rng.randint(1, 4), "weight": rng.randint(1, _WEIGHT_MAX)}
    return _path(number, number % keys), settings


def _weights_in_pool(rng: random.Random, actions: int, keys: int) -> _Changed:
    weights = {action_ref(number): rng.randint(1, _WEIGHT_MAX) for number in range(actions)}
    return _POOL_PATH, {"weights": weights}


def _rate(least: int, most: int) -> Callable[[random.Random, Fields], Fields]:
    return lambda rng, _: {"rate": {"starts": rng.randint(least, most), "per": 1}}


def _pause(rng: random.Random, definition: Mapping[str, object]) -> Fields:
    return {"paused": True}


_CHANGING: Final[tuple[_Changing, ...]] = (
    # Not below the units of an action: its requests would be refused.
    _of_resource(_LIMITED, lambda _, resource: {"capacity": max(resource["capacity"] // 2, _UNITS_MAX)}),
    _of_resource(_LIMITED, lambda _, resource: {"capacity": 2 * resource["capacity"]}),
    _of_resource(_LIMITED, _pause),
    _settings_of_key,
    _of_resource(_RATED, _rate(20, 50)),
    _of_action(
        lambda action: action["max_concurrent_total"],
        lambda rng, _: {"max_concurrent_total": rng.choice([1, 2, 4, 5])},
    ),
    _other_use("weight", _WEIGHT_MAX),
    _of_action(lambda _: True, _pause),
    _weights_in_pool,
    _other_use("units", _UNITS_MAX),
    _of_action(lambda action: action["rate"], _rate(4, 9)),
    # After all others: its executions acquire in another order.
    _of_resource(_LIMITED, lambda _, resource: {"rank": len(_RESOURCES) + resource["rank"]}),
)
"""The kinds of changes, one after the other."""
