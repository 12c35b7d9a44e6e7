"""`executor top`: queues, slots and workers on one screen; keys pause, resume and change limits.

In: the API's lists of queues and workers, and keys. Out: a screen that is refreshed once a second; without a
terminal, one print. `top_view` holds what is shown and what a key does.
"""

import os
import select
import sys
import termios
import time
import tty
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Final, Self

import typer
from rich.console import Console
from rich.live import Live

from turnstile.common.domain.errors import Code
from turnstile.executor.cli.arguments import duration, encode, is_interactive
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable, with_api
from turnstile.executor.cli.documents import TopScreen
from turnstile.executor.cli.keys import key_path, stored_fields
from turnstile.executor.cli.output import JsonOption, console_for_pipes, print_json
from turnstile.executor.cli.top_view import QueueChange, Sort, View, after_change, after_key, draw

_QUEUES_MAX: Final = 500
_WORKERS_MAX: Final = 200
_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of requests while the screen is shown: keys are not read meanwhile."""
_HISTORY_SECONDS: Final = 65.0
"""The history is read again so long after its end: by then the leader has written the next minute."""
_STALE: Final = "Not refreshed: "
_SEQUENCES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b": "escape",
}
_BYTES_MAX: Final = 256


@with_api
def top(
    api: Api,
    *,
    sort: Annotated[Sort, typer.Option(metavar="|".join(Sort), help="Order of the queues.")] = Sort.WAITING,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only queues whose action or key contains this text.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="DURATION", show_default=False, help="Refresh interval. [default: 1s]"
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, also on a terminal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show queues, slots, failures and workers, refreshed every second.

    The second line shows how many executions ended in the last hour, three minutes in each bar.

    SLOTS are those of executions that run, or hold one while they wait at a later gate. FAILED counts the
    executions of the action, over all its keys, that ended as failed, timeout or abandoned in the last 10
    minutes, and their share of all that ended; the last line shows the error of the latest one.

    Keys: up, down, j, k select a queue; p pauses its action after a question, r resumes it; + and - change
    the limit of the action after a question, in the row of a key the limit of this key; s changes the order;
    q quits. Without a terminal, and with --once or --json, it prints once
    and exits.
    """
    console = Console(highlight=False)
    view = View(sort=sort)
    if as_json:
        print_json(TopScreen(**_read(api, view, search, timeout_seconds=None)))
    elif once or not (is_interactive() and console.is_terminal) or console.is_dumb_terminal:
        console_for_pipes().print(draw(_refreshed(api, view, search, timeout_seconds=None), height=None))
    else:
        _run(api, console, _refreshed(api, view, search), search, interval_seconds=max(interval, 0.1))


def _run(api: Api, console: Console, view: View, search: str | None, *, interval_seconds: float) -> None:
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        refresh_at = time.monotonic() + interval_seconds
        while not view.is_closed:
            live.update(draw(view, height=console.height), refresh=True)
            keys = keyboard.keys(refresh_at - time.monotonic())
            before = view
            for key in keys:
                view, change = after_key(view, key)
                if change is not None:
                    view = apply_change(api, view, change)
            if not keys or view.sort != before.sort or view.message != before.message:
                view = _refreshed_or_stale(api, view, search)
                refresh_at = time.monotonic() + interval_seconds


def _refreshed_or_stale(api: Api, view: View, search: str | None) -> View:
    try:
        return _refreshed(api, view, search)
    except (ApiUnreachable, ApiRefused) as error:
        # A question that is no longer shown must not be confirmed.
        return replace(view, unconfirmed=None, message=f"{_STALE}{error.message}")


def _refreshed(
    api: Api, view: View, search: str | None, *, timeout_seconds: float | None = _TIMEOUT_SECONDS
) -> View:
    found = _read(api, view, search, timeout_seconds=timeout_seconds)
    history = view.history
    if history is None or _seconds(history["until"], found["read_at"]) > _HISTORY_SECONDS:
        history = api.get("/history", {"window": "1h"}, timeout_seconds=timeout_seconds)
    return replace(
        view,
        queues=found["queues"],
        queues_total=found["queues_total"],
        degraded=found["degraded"],
        workers=found["workers"],
        history=history,
        read_at=found["read_at"],
        message="" if view.message.startswith(_STALE) else view.message,
    )


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


def _read(api: Api, view: View, search: str | None, *, timeout_seconds: float | None) -> dict[str, Any]:
    query: dict[str, str | int | None] = {"sort": view.sort, "search": search, "limit": _QUEUES_MAX}
    queues = api.get("/queues", query, timeout_seconds=timeout_seconds)
    states: dict[str, Any] = {"state": ["live", "draining", "overdue"], "limit": _WORKERS_MAX}
    workers = api.get("/workers", states, timeout_seconds=timeout_seconds)
    return {
        "read_at": queues["read_at"],
        "queues": queues["items"],
        "queues_total": queues["total"],
        # An executor of the previous version sends none.
        "degraded": queues.get("degraded", {}),
        "workers": workers["items"],
    }


def apply_change(api: Api, view: View, change: QueueChange) -> View:
    """Request a change; return the view with its result."""
    try:
        if change.verb != "limit":
            api.post(f"/actions/{change.ref}/{change.verb}")
            done = f"{change.verb}d"
        elif not _limited(api, change):
            return replace(view, message=f"{change.subject}: its limit has been changed; press the key again")
        else:
            done = f"limit {change.limit}"
    except (ApiRefused, ApiUnreachable) as error:
        return replace(view, message=error.message)
    return replace(after_change(view, change), message=f"{change.subject}: {done}")


def _limited(api: Api, change: QueueChange) -> bool:
    """Change a limit; False if it is not the one that was shown, or if it changes meanwhile."""
    action, etag = api.get_tagged(f"/actions/{change.ref}", timeout_seconds=_TIMEOUT_SECONDS)
    if change.key is not None:
        fields = stored_fields(api, change.ref, change.key)
        if fields.get("max_concurrent", action["max_concurrent"]) != change.shown:
            return False
        body = encode({**fields, "max_concurrent": change.limit})
        api.put(key_path(change.ref, change.key), body)
        return True
    if action["max_concurrent"] != change.shown:
        return False
    try:
        api.patch(f"/actions/{change.ref}", encode({"max_concurrent": change.limit}), if_match=etag)
    except ApiRefused as refusal:
        if refusal.code == Code.PRECONDITION_FAILED:
            return False
        raise
    return True


class Keyboard:
    """Reads single keys from the terminal on stdin; Ctrl-C still interrupts."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()

    def __enter__(self) -> Self:
        """Switch off line buffering and echo."""
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def keys(self, wait_seconds: float) -> list[str]:
        """Return the pressed keys, after waiting for the first; a closed terminal is 'q'."""
        ready, _, _ = select.select([self._descriptor], [], [], max(wait_seconds, 0.0))
        if not ready:
            return []
        data = os.read(self._descriptor, _BYTES_MAX)
        return key_names(data) if data else ["q"]


def key_names(data: bytes) -> list[str]:
    """Return the names of the keys in the bytes from a terminal."""
    keys = []
    while data:
        sequence = next((known for known in _SEQUENCES if data.startswith(known)), None)
        if sequence is None:
            keys.append(chr(data[0]))
            data = data[1:]
        else:
            keys.append(_SEQUENCES[sequence])
            data = data[len(sequence) :]
    return keys
