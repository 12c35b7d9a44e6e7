"""What is seen, and what a key does to it. Pure: a view and a key in, a view and perhaps a wish out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from turnstile.executor.cli.connection import Json

_PAGE: Final = 10
_MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -_PAGE,
    "page down": _PAGE,
    "home": -1_000_000,
    "g": -1_000_000,
    "end": 1_000_000,
    "G": 1_000_000,
}
LIMIT_MAX: Final = 1_000_000


class Sort(StrEnum):
    """Which queues stand first; the same words as in the API."""

    WAITING = "waiting"
    OLDEST = "oldest"
    OCCUPANCY = "occupancy"
    RATE = "rate"
    NAME = "name"


class QueueName(NamedTuple):
    """An action and a concurrency key: one queue."""

    action_ref: str
    concurrency_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be asked of the API for the action of the selected queue."""

    ref: str
    verb: str
    """`pause`, `resume` or `limit`."""
    step: int = 0
    """By how much the limit is to change, from what it is by then: what is seen may be a second old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that is on the screen."""

    queues: Sequence[Json] = ()
    queues_total: int = 0
    workers: Sequence[Json] = ()
    read_at: str | None = None
    sort: Sort = Sort.WAITING
    selected: QueueName | None = None
    message: str = ""
    """What became of the last key, or why nothing new is seen."""
    is_left: bool = field(default=False)

    @property
    def place(self) -> int:
        """The row of the selected queue; the first where it is gone."""
        names = [name_of(queue) for queue in self.queues]
        return names.index(self.selected) if self.selected in names else 0

    @property
    def chosen(self) -> Json | None:
        """The selected queue."""
        return self.queues[self.place] if self.queues else None


def name_of(queue: Json) -> QueueName:
    """Return the name of a queue as the API shows it."""
    return QueueName(queue["action_ref"], queue["concurrency_key"])


def after_key(view: View, key: str) -> tuple[View, Wish | None]:
    """Return what is seen after a key, and what is to be asked for."""
    if key in ("q", "Q", "escape"):
        return replace(view, is_left=True), None
    if key == "s":
        sorts = list(Sort)
        return replace(view, sort=sorts[(sorts.index(view.sort) + 1) % len(sorts)], message=""), None
    if view.chosen is None:
        return view, None
    if key in _MOVES:
        row = min(max(view.place + _MOVES[key], 0), len(view.queues) - 1)
        return replace(view, selected=name_of(view.queues[row]), message=""), None
    return _asked(view, view.chosen, key)


def after_change(view: View, action: Json) -> View:
    """Return what is seen once an action was changed; the next look may be from before that."""
    changed = {"max_concurrent": action["max_concurrent"], "paused": action["paused"]}
    queues = [
        Json({**queue, **changed}) if queue["action_ref"] == action["ref"] else queue for queue in view.queues
    ]
    return replace(view, queues=queues)


def stepped(limit: int | None, step: int) -> int | None:
    """Return a limit one higher or lower; None where there is no such one."""
    return None if limit is None or not 0 <= limit + step <= LIMIT_MAX else limit + step


def _asked(view: View, chosen: Json, key: str) -> tuple[View, Wish | None]:
    ref = chosen["action_ref"]
    # From now on it is meant, whatever row it moves to.
    view = replace(view, selected=name_of(chosen))
    match key:
        case "p":
            return view, Wish(ref=ref, verb="pause")
        case "r":
            return view, Wish(ref=ref, verb="resume")
        case "+" | "=":
            return view, Wish(ref=ref, verb="limit", step=1)
        case "-":
            return view, Wish(ref=ref, verb="limit", step=-1)
        case _:
            return view, None
