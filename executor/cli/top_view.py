"""The screen of `executor top`: what it shows and what a key does to it.

Pure: a view and a key in, a view and possibly a change of an action out; `draw` turns a view into text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.client import Json
from turnstile.executor.cli.history import bars, ended_of, failed_of, short_duration
from turnstile.executor.cli.output import counted, plain
from turnstile.executor.cli.queues import slots_in_use, slots_text
from turnstile.executor.dashboard.state import QueueName

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
_STEPS: Final = {"+": 1, "=": 1, "-": -1}
LIMIT_MAX: Final = 1_000_000
_ANSWERS: Final = "y yes   any other key no"
_BAR_WIDTH: Final = 10
_WORKERS_SHARE: Final = 3
"""Workers get at most this fraction of the screen: 1/3."""
_HEIGHT_WITH_WORKERS: Final = 14
_FRAME_LINES: Final = 7
"""Lines around the rows of queues."""
_FAILURES_MAX: Final = 10
_MINUTES_OF_BAR: Final = 3
_DEGRADED_MAX: Final = 2
_KEYS: Final = "↑ ↓ j k select   p pause   r resume   + - limit   s sort   q quit"
_STATE_STYLES: Final = {"live": "green", "draining": "yellow", "overdue": "red"}


class Sort(StrEnum):
    """Orders of the queues in the API."""

    WAITING = "waiting"
    OLDEST = "oldest"
    OCCUPANCY = "occupancy"
    RATE = "rate"
    FAILURES = "failures"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """A change of the selected queue's action, or of the limit of its key."""

    ref: str
    verb: str
    """`pause`, `resume` or `limit`."""
    key: str | None = None
    """The key whose limit is changed; None: the limit of the action."""
    shown: int = 0
    """The limit when the key was pressed. If there is another one by now, nothing is changed."""
    limit: int = 0
    """The new one."""

    @property
    def subject(self) -> str:
        """What is changed, as messages name it."""
        return self.ref if self.key is None else f"key {self.key} of {self.ref}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of the screen."""

    queues: Sequence[Json] = ()
    queues_total: int = 0
    workers: Sequence[Json] = ()
    degraded: Mapping[str, str] = field(default_factory=dict)
    """What does not work though the servers are reachable, and why."""
    history: Json | None = None
    """What executions did in the last hour."""
    read_at: str | None = None
    sort: Sort = Sort.WAITING
    selected: QueueName | None = None
    message: str = ""
    """The result of the last key, or why the screen is not refreshed."""
    unconfirmed: QueueChange | None = None
    """A change that the next key confirms or drops."""
    is_closed: bool = False

    @property
    def row(self) -> int:
        """The row of the selected queue; the first one if it is gone."""
        names = [name_of(queue) for queue in self.queues]
        return names.index(self.selected) if self.selected in names else 0

    @property
    def chosen(self) -> Json | None:
        """The selected queue."""
        return self.queues[self.row] if self.queues else None


def name_of(queue: Json) -> QueueName:
    """Return the name of a queue of the API."""
    return QueueName(queue["action_ref"], queue["concurrency_key"])


def after_key(view: View, key: str) -> tuple[View, QueueChange | None]:
    """Return the view after a key, and the change that the key requests."""
    if view.unconfirmed is not None and view.unconfirmed.verb == "limit" and key in _STEPS:
        return _ask_for_limit(view, view.unconfirmed, _STEPS[key]), None
    if view.unconfirmed is not None:
        return replace(view, unconfirmed=None, message=""), view.unconfirmed if key in ("y", "Y") else None
    if key in ("q", "Q", "escape"):
        return replace(view, is_closed=True), None
    if key == "s":
        sorts = list(Sort)
        return replace(view, sort=sorts[(sorts.index(view.sort) + 1) % len(sorts)], message=""), None
    if view.chosen is None:
        return view, None
    if key in _MOVES:
        row = min(max(view.row + _MOVES[key], 0), len(view.queues) - 1)
        return replace(view, selected=name_of(view.queues[row]), message=""), None
    return _change(view, view.chosen, key)


def after_change(view: View, change: QueueChange) -> View:
    """Return the view after a change, because the next refresh may be older than the change."""

    def changed(queue: Json) -> Json:
        if change.verb != "limit" and queue["action_ref"] == change.ref:
            return Json({**queue, "paused": change.verb == "pause"})
        if change.verb == "limit" and name_of(queue) == (change.ref, change.key):
            return Json({**queue, "max_concurrent": change.limit})
        return queue

    return replace(view, queues=[changed(queue) for queue in view.queues])


def _change(view: View, chosen: Json, key: str) -> tuple[View, QueueChange | None]:
    ref, key_of_queue = name_of(chosen)
    # The selection follows the queue when rows move.
    view = replace(view, selected=name_of(chosen))
    match key:
        case "p":
            whole = "" if key_of_queue is None else "all keys of "
            question = f"Pause {whole}{ref}? Nothing of it starts until it is resumed.   {_ANSWERS}"
            return replace(view, unconfirmed=QueueChange(ref=ref, verb="pause"), message=question), None
        case "r":
            return view, QueueChange(ref=ref, verb="resume")
        case "+" | "=" | "-":
            limit = chosen["max_concurrent"]
            change = QueueChange(ref=ref, verb="limit", key=key_of_queue, shown=limit or 0, limit=limit or 0)
            if limit is None:
                return replace(view, message=f"{change.subject}: it has no limit that could be changed"), None
            return _ask_for_limit(view, change, _STEPS[key]), None
        case _:
            return view, None


def _ask_for_limit(view: View, change: QueueChange, step: int) -> View:
    change = replace(change, limit=min(max(change.limit + step, 0), LIMIT_MAX))
    if change.limit == change.shown:
        return replace(view, unconfirmed=None, message=f"{change.subject}: limit {change.limit}")
    question = f"Limit of {change.subject}: {change.shown} to {change.limit}?   + - other   {_ANSWERS}"
    return replace(view, unconfirmed=change, message=question)


def draw(view: View, *, height: int | None) -> RenderableType:
    """Return the screen; without a height all rows, for a pipe."""
    lines_left = len(view.queues) + len(view.workers) + _FRAME_LINES if height is None else height
    degraded = [
        Text(f"Does not work: {plain(part)}: {plain(reason)}", style="bold red", no_wrap=height is not None)
        for part, reason in list(view.degraded.items())[:_DEGRADED_MAX]
    ]
    is_high = height is None or height >= _HEIGHT_WITH_WORKERS
    head = [_head(view)] if view.history is None or not is_high else [_head(view), _last_hour(view.history)]
    lines_left -= _FRAME_LINES - 1 + len(head) + len(degraded)
    workers = view.workers
    below: list[RenderableType] = []
    if is_high:
        workers = workers if height is None else workers[: height // _WORKERS_SHARE]
        below = [Text(), _workers(workers), *_more(len(view.workers) - len(workers))]
        lines_left -= 0 if height is None else max(len(workers), 1) + 3
    queues_max = max(lines_left, 1)
    start = min(max(view.row - queues_max // 2, 0), max(len(view.queues) - queues_max, 0))
    shown = view.queues[start : start + queues_max]
    table = _queues(view, shown, interactive=height is not None)
    parts: list[RenderableType] = [
        *head,
        *degraded,
        Text(),
        table,
        *_more(view.queues_total - len(shown)),
        *below,
    ]
    if height is None:
        parts += _last_failures(view)
    else:
        parts += [_last_failure_of_chosen(view)]
        parts += [Text(plain(view.message), style="yellow", no_wrap=True), Text(_KEYS, style="reverse")]
    return Group(*parts)


def _more(hidden: int) -> list[RenderableType]:
    return [Text(f"  and {hidden} more", style="dim")] if hidden > 0 else []


def _head(view: View) -> Text:
    waiting = sum(queue["queue_length"] for queue in view.queues)
    held = sum(slots_in_use(queue) for queue in view.queues)
    running = sum(worker["running"] for worker in view.workers)
    capacity = sum(worker["concurrency"] for worker in view.workers)
    at = "" if view.read_at is None else datetime.fromisoformat(view.read_at).strftime("%H:%M:%SZ")
    return Text(
        f"{at}  {counted(view.queues_total, 'queue')} by {view.sort}: {waiting} waiting, {held} slots in "
        f"use;  {counted(len(view.workers), 'worker')}: {running} of {capacity} running",
        style="bold",
        no_wrap=True,
    )


def _last_hour(history: Json) -> Text:
    ended, totals = [ended_of(point) for point in history["points"]], history["totals"]
    shown = bars([sum(ended[at : at + _MINUTES_OF_BAR]) for at in range(0, len(ended), _MINUTES_OF_BAR)])
    waiting = [short_duration(totals[f"waiting_{name}_seconds"]) for name in ("p50", "p95")]
    return Text(
        f"last hour |{shown}| {sum(ended)} ended, {failed_of(totals)} failed;  waiting p50 {waiting[0]}, "
        f"p95 {waiting[1]}",
        no_wrap=True,
    )


def _queues(view: View, shown: Sequence[Json], *, interactive: bool) -> RenderableType:
    if not shown:
        return Text(
            "No queues; create actions with 'executor actions apply FILE' or 'worker serve --actions MODULE'"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "ACTION", "KEY", "SLOTS"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for heading in ("WAITING", "IN/S", "OUT/S", "OLDEST", "FAILED"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for queue in shown:
        selected = interactive and queue is view.chosen
        table.add_row(
            Text(">" if selected else " "),
            Text(plain(queue["action_ref"])),
            Text(plain(queue["concurrency_key"] or "")),
            _slots(queue),
            Text(str(queue["queue_length"])),
            _rate(queue["enqueued_per_second"]),
            _rate(queue["completed_per_second"]),
            Text(_age(queue["oldest_enqueued_at"], view.read_at)),
            _failed(queue.get("failures")),
            _note(queue),
            style="reverse" if selected else "",
        )
    return table


def _slots(queue: Json) -> Text:
    held, limit = slots_in_use(queue), queue["max_concurrent"]
    if limit is None:
        return Text(slots_text(queue))
    filled = _BAR_WIDTH if held >= limit else held * _BAR_WIDTH // limit
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return Text.assemble((bar, "yellow" if held >= limit else "green"), f" {slots_text(queue)}")


def _failed(failures: Json | None) -> Text:
    # An executor of the previous version sends none.
    if failures is None:
        return Text("-", style="dim")
    if not failures["failed"]:
        return Text("0")
    return Text(f"{failures['failed']} ({format_share(failures['share'])})", style="red")


def format_share(share: float) -> str:
    """Return a share as a percentage; a small one does not become 0 %, nor an incomplete one 100 %."""
    if 0 < share < 0.01:
        return "<1 %"
    return f"{min(round(100 * share), 100 if share == 1 else 99)} %"


def _last_failure_of_chosen(view: View) -> Text:
    """Return the last failure of the selected action, which its queue without a key has."""
    if view.chosen is None:
        return Text()
    of_action = QueueName(view.chosen["action_ref"], None)
    queue = next((each for each in view.queues if name_of(each) == of_action), None)
    return _last_failure(queue, view.read_at)


def _last_failure(queue: Json | None, now: str | None) -> Text:
    last = None if queue is None or queue.get("failures") is None else queue["failures"]["last"]
    if queue is None or last is None:
        return Text()
    error = ": ".join(plain(part) for part in (last["type"], last["message"]) if part)
    words = f"Last failure of {plain(queue['action_ref'])}: #{last['execution_id']} {last['status']}"
    return Text(f"{words} {_age(last['at'], now)} ago; {error or 'no error text'}", style="red", no_wrap=True)


def _last_failures(view: View) -> list[RenderableType]:
    """Return the last failure of each action that has one; if there are many, of those with the most."""
    failing = [each for each in view.queues if (each.get("failures") or {}).get("failed")]
    most = sorted(failing, key=lambda each: -each["failures"]["failed"])[:_FAILURES_MAX]
    return [Text(), *(_last_failure(each, view.read_at) for each in most)] if most else []


def _note(queue: Json) -> Text:
    if queue["paused"]:
        return Text("paused", style="yellow")
    if not queue["served"] and queue["queue_length"] + slots_in_use(queue):
        return Text(f"no worker serves {plain(queue['pool'])}", style="red")
    return Text()


def _workers(workers: Sequence[Json]) -> RenderableType:
    if not workers:
        return Text("No workers; start one with 'worker serve --actions MODULE'")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("WORKER", "NAME", "STATE", "RUNNING", "POOLS"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for worker in workers:
        table.add_row(
            Text(plain(worker["id"])),
            Text(plain(worker["name"])),
            _worker_state(worker),
            Text(f"{worker['running']} of {worker['concurrency']}"),
            Text(plain(", ".join(worker["pools"]))),
        )
    return table


def _worker_state(worker: Json) -> Text:
    if worker["state"] == "live" and worker["not_ready"]:
        return Text("not ready", style="red")
    return Text(worker["state"], style=_STATE_STYLES.get(worker["state"], ""))


def _rate(per_second: float | None) -> Text:
    return Text("-", style="dim") if per_second is None else Text(f"{per_second:.1f}")


def _age(since: str | None, now: str | None) -> str:
    if since is None or now is None:
        return ""
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
    return format_duration(max(round(seconds), 0))
