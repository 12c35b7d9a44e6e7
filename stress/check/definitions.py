"""The definitions of actions and resources over time, as the installation records their changes.

In: the definitions in force now and the recorded changes. A definition is flat: its keys are the fields of
the log of changes (`max_concurrent`, `rate.starts`, `keys.7`); `{}` means that there is none. Out: what may
have been in force at an instant. A change takes effect when it is committed, shortly after its recorded
instant, so both definitions may apply for `settling_ns`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from turnstile.stress.recording import RecordedDefinition

Definition: TypeAlias = Mapping[str, Any]

_NS_PER_SECOND: Final = 1_000_000_000
_CHANGED_IN_PLACE: Final = ("max_concurrent", "max_concurrent_total", "capacity", "paused")
_KEYS: Final = "keys."


class DefinitionChange(NamedTuple):
    """One recorded change: the changed fields with their old and new values."""

    at: int
    old: Definition
    new: Definition


class Rate(NamedTuple):
    """At most `starts` grants in any period of `per_ns`."""

    starts: int
    per_ns: int


class Use(NamedTuple):
    """What an action takes of a resource, and its share there."""

    units: int
    weight: int


@dataclass(frozen=True)
class DefinitionHistory:
    """The definitions of one action or one resource, the oldest first."""

    versions: Sequence[tuple[int, Definition]]
    """Since when each is in force."""

    @cached_property
    def changed_at(self) -> list[int]:
        """Return the instants of all changes."""
        return [at for at, _ in self.versions[1:]]

    def possible(self, first: int, last: int) -> list[Definition]:
        """Return the definitions of which one was in force at some instant of this period."""
        begins = bisect_right(self.changed_at, first)
        return [each for _, each in self.versions[begins : bisect_right(self.changed_at, last) + 1]]

    def changes_in(self, after: int, until: int) -> bool:
        """Return whether anything changed."""
        return bisect_right(self.changed_at, after) < bisect_right(self.changed_at, until)

    def moves_in(self, after: int, until: int) -> bool:
        """Return whether a change may have altered a route: anything but a limit, a pause or a key."""
        found = self.versions[bisect_right(self.changed_at, after) : bisect_right(self.changed_at, until) + 1]
        graphs = [_graph(each) for _, each in found]
        return any(one != other for one, other in pairwise(graphs))


NO_HISTORY: Final = DefinitionHistory(((0, {}),))


def history_of(now: Definition, changes: Iterable[DefinitionChange]) -> DefinitionHistory:
    """Return the definitions before and after each change, in ascending order, from the present one."""
    versions: list[tuple[int, Definition]] = []
    current = dict(now)
    for change in sorted(changes, key=lambda each: each.at, reverse=True):
        versions.append((change.at, dict(current)))
        for name in change.new:
            current.pop(name, None)
        current |= change.old
    return DefinitionHistory([(0, current), *reversed(versions)])


def recorded_history(recorded: RecordedDefinition) -> DefinitionHistory:
    """Return the definitions of a recording over time."""
    return history_of(
        recorded.now, [DefinitionChange(each.at, each.old, each.new) for each in recorded.changes]
    )


def pauses(pool: DefinitionHistory) -> DefinitionHistory:
    """Return when a pool was paused. Its order and weights act on no gate before it."""
    versions: list[tuple[int, Definition]] = []
    for at, version in pool.versions:
        paused = {"paused": bool(version.get("paused"))}
        if not versions or versions[-1][1] != paused:
            versions.append((at, paused))
    return DefinitionHistory(versions)


@dataclass(frozen=True)
class Definitions:
    """All definitions over time."""

    actions: Mapping[str, DefinitionHistory]
    resources: Mapping[str, DefinitionHistory] = field(default_factory=dict)
    pools: Mapping[str, DefinitionHistory] = field(default_factory=dict)
    """When they were paused; see `pauses`."""
    settling_ns: int = 5 * _NS_PER_SECOND
    """How long after its recorded instant a change may take effect."""

    def action(self, ref: str) -> DefinitionHistory:
        """Return the definitions of one action."""
        return self.actions.get(ref, NO_HISTORY)

    def resource(self, name: str) -> DefinitionHistory:
        """Return the definitions of one resource."""
        return self.resources.get(name, NO_HISTORY)

    def pools_of(self, ref: str) -> Iterator[DefinitionHistory]:
        """Yield the known pools in which an action was at any time."""
        names = {version.get("pool") for _, version in self.action(ref).versions}
        yield from (pool for name, pool in self.pools.items() if name in names)

    def around(self, history: DefinitionHistory, at: int) -> list[Definition]:
        """Return the definitions that may have been in force at this instant."""
        return history.possible(at - self.settling_ns, at)

    def changed(self, history: DefinitionHistory, after: int, until: int) -> bool:
        """Return whether a change may have taken effect in this period."""
        return history.changes_in(after - self.settling_ns, until)


def _graph(definition: Definition) -> dict[str, Any]:
    return {
        name: value
        for name, value in definition.items()
        if name not in _CHANGED_IN_PLACE and not name.startswith(_KEYS)
    } | {"has_total": definition.get("max_concurrent_total") is not None}


def limit_of(action: Definition, key: str | None) -> int | None:
    """Return the limit of one queue."""
    limit: int | None = _key_settings(action, key).get("max_concurrent", action.get("max_concurrent"))
    return limit


def weight_of(action: Definition, key: str | None) -> int:
    """Return the share of one key at the total of its action."""
    return _key_settings(action, key).get("weight") or 1


def _key_settings(action: Definition, key: str | None) -> Definition:
    found: Definition | None = None if key is None else action.get(f"{_KEYS}{key}")
    return found or {}


def uses_of(action: Definition) -> dict[str, Use]:
    """Return what an action takes of each resource."""
    uses = action.get("uses") or ()
    return {each["resource"]: Use(each["units"], each["weight"]) for each in uses}


def rate_of(definition: Definition) -> Rate | None:
    """Return the rate of an action or resource."""
    starts, per = definition.get("rate.starts"), definition.get("rate.per")
    return None if starts is None or per is None else Rate(starts, round(per * _NS_PER_SECOND))


def is_fair(definition: Definition) -> bool:
    """Return whether flows take turns."""
    return definition.get("order") == "fair"


def rate_periods(history: DefinitionHistory, settling_ns: int, until: int) -> Iterator[tuple[int, int, Rate]]:
    """Yield each rate with the period in which it certainly was in force."""
    since, rate = 0, rate_of(history.versions[0][1])
    for at, definition in [*history.versions[1:], (until, {})]:
        following = rate_of(definition)
        if following != rate:
            if rate is not None:
                yield since, at, rate
            since, rate = at + settling_ns, following


def any_in(instants: Sequence[int], after: int, until: int) -> bool:
    """Return whether one of these ascending instants is in the period."""
    return bisect_right(instants, after) < bisect_right(instants, until)
