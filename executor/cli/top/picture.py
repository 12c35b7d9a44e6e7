"""Draws a view: queues with their slots and lines, workers, the keys. Pure: a view in, what to print out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.connection import Json
from turnstile.executor.cli.output import plain
from turnstile.executor.cli.top.view import View

_BAR_WIDTH: Final = 10
_WORKERS_SHARE: Final = 3
"""Workers get at most a third of the screen."""
_HEIGHT_WITH_WORKERS: Final = 14
_FRAME_LINES: Final = 6
"""What stands around the rows of queues."""
_KEYS: Final = "↑ ↓ j k select   p pause   r resume   + - limit   s sort   q quit"
_STATE_STYLES: Final = {"live": "green", "draining": "yellow", "overdue": "red"}


def picture(view: View, *, height: int | None) -> RenderableType:
    """Return the screen; without a height everything there is, for a pipe."""
    lines_left = len(view.queues) + len(view.workers) + _FRAME_LINES if height is None else height
    lines_left -= _FRAME_LINES
    workers = view.workers
    below: list[RenderableType] = []
    if height is None or height >= _HEIGHT_WITH_WORKERS:
        workers = workers if height is None else workers[: height // _WORKERS_SHARE]
        below = [Text(), _workers(workers), *_more(len(view.workers) - len(workers))]
        lines_left -= 0 if height is None else max(len(workers), 1) + 3
    queues_max = max(lines_left, 1)
    start = min(max(view.place - queues_max // 2, 0), max(len(view.queues) - queues_max, 0))
    shown = view.queues[start : start + queues_max]
    table = _queues(view, shown, interactive=height is not None)
    parts: list[RenderableType] = [_head(view), Text(), table, *_more(view.queues_total - len(shown)), *below]
    if height is not None:
        parts += [Text(plain(view.message), style="yellow", no_wrap=True), Text(_KEYS, style="reverse")]
    return Group(*parts)


def _more(hidden: int) -> list[RenderableType]:
    return [Text(f"  and {hidden} more", style="dim")] if hidden > 0 else []


def _head(view: View) -> Text:
    waiting = sum(queue["queue_length"] for queue in view.queues)
    active = sum(queue["active_count"] for queue in view.queues)
    running = sum(worker["running"] for worker in view.workers)
    places = sum(worker["concurrency"] for worker in view.workers)
    at = "" if view.read_at is None else datetime.fromisoformat(view.read_at).strftime("%H:%M:%SZ")
    return Text(
        f"{at}  {view.queues_total} queues by {view.sort}: {waiting} waiting, {active} slots held;  "
        f"{len(view.workers)} workers: {running} of {places} places in use",
        style="bold",
        no_wrap=True,
    )


def _queues(view: View, shown: Sequence[Json], *, interactive: bool) -> RenderableType:
    if not shown:
        return Text("no queues; apply actions, or start a worker with some")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "ACTION", "KEY", "SLOTS"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for heading in ("WAITING", "IN/S", "OUT/S", "OLDEST"):
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
            _note(queue),
            style="reverse" if selected else "",
        )
    return table


def _slots(queue: Json) -> Text:
    active, limit = queue["active_count"], queue["max_concurrent"]
    if limit is None:
        return Text(f"{active}, no limit")
    filled = _BAR_WIDTH if active >= limit else active * _BAR_WIDTH // limit
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return Text.assemble((bar, "yellow" if active >= limit else "green"), f" {active} of {limit}")


def _note(queue: Json) -> Text:
    if queue["paused"]:
        return Text("paused", style="yellow")
    if not queue["served"] and queue["queue_length"] + queue["active_count"]:
        return Text(f"no worker serves {plain(queue['pool'])}", style="red")
    return Text()


def _workers(workers: Sequence[Json]) -> RenderableType:
    if not workers:
        return Text("no workers; start one with 'worker serve --actions MODULE'")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("WORKER", "NAME", "STATE", "RUNNING", "POOLS"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for worker in workers:
        table.add_row(
            Text(plain(worker["id"])),
            Text(plain(worker["name"])),
            Text(worker["state"], style=_STATE_STYLES.get(worker["state"], "")),
            Text(f"{worker['running']} of {worker['concurrency']}"),
            Text(plain(", ".join(worker["pools"]))),
        )
    return table


def _rate(per_second: float | None) -> Text:
    return Text("-", style="dim") if per_second is None else Text(f"{per_second:.1f}")


def _age(since: str | None, now: str | None) -> str:
    if since is None or now is None:
        return ""
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
    return format_duration(max(round(seconds), 0))
