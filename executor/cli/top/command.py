"""Runs `executor top`: looks once a second, draws, and asks for what a key means."""

import time
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live

from turnstile.executor.cli.arguments import can_be_asked, duration, encode
from turnstile.executor.cli.connection import Api, ApiRefused, ApiUnreachable, Json, with_api
from turnstile.executor.cli.output import JsonOption, console_for_pipes, print_json
from turnstile.executor.cli.top.keyboard import Keyboard
from turnstile.executor.cli.top.picture import picture
from turnstile.executor.cli.top.view import Sort, View, Wish, after_change, after_key, stepped

_QUEUES_MAX: Final = 500
_WORKERS_MAX: Final = 200
_ANSWER_SECONDS: Final = 5.0
"""A screen that waits longer for an answer says so, and obeys keys again."""


@with_api
def top(
    api: Api,
    *,
    sort: Annotated[Sort, typer.Option(help="Which queues stand first.")] = Sort.WAITING,
    search: Annotated[
        str | None, typer.Option(help="Only queues whose action or key has this in it.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="DURATION", show_default=False, help="Between looks. [default: 1s]"
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once, also on a terminal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what goes on: queues, slots, workers; live on a terminal.

    Keys: up, down, j, k select a queue; p pauses its action, r resumes it, + and - change its limit; s sorts
    otherwise; q leaves. Where there is no terminal, and with --once or --json, it prints once.
    """
    console = Console(highlight=False)
    view = View(sort=sort)
    if as_json:
        print_json(_looked(api, view, search, answer_seconds=None))
    elif once or not (can_be_asked() and console.is_terminal) or console.is_dumb_terminal:
        console_for_pipes().print(picture(_seen(api, view, search, answer_seconds=None), height=None))
    else:
        _run(api, console, _seen(api, view, search), search, interval_seconds=max(interval, 0.1))


def _run(api: Api, console: Console, view: View, search: str | None, *, interval_seconds: float) -> None:
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        look_at = time.monotonic() + interval_seconds
        while not view.is_left:
            live.update(picture(view, height=console.height), refresh=True)
            keys = keyboard.keys(look_at - time.monotonic())
            before = view
            for key in keys:
                view, wish = after_key(view, key)
                if wish is not None:
                    view = _after_wish(api, view, wish)
            if not keys or view.sort != before.sort or view.message != before.message:
                view = _seen_again(api, view, search)
                look_at = time.monotonic() + interval_seconds


def _seen_again(api: Api, view: View, search: str | None) -> View:
    try:
        return _seen(api, view, search)
    except (ApiUnreachable, ApiRefused) as error:
        return replace(view, message=f"this is what was seen last: {error.message}")


def _seen(
    api: Api, view: View, search: str | None, *, answer_seconds: float | None = _ANSWER_SECONDS
) -> View:
    found = _looked(api, view, search, answer_seconds=answer_seconds)
    return replace(
        view,
        queues=found["queues"],
        queues_total=found["queues_total"],
        workers=found["workers"],
        read_at=found["read_at"],
        message="" if view.message.startswith("this is what") else view.message,
    )


def _looked(api: Api, view: View, search: str | None, *, answer_seconds: float | None) -> dict[str, Any]:
    wanted: dict[str, str | int | None] = {"sort": view.sort, "search": search, "limit": _QUEUES_MAX}
    queues = api.get("/queues", wanted, timeout_seconds=answer_seconds)
    states: dict[str, Any] = {"state": ["live", "draining", "overdue"], "limit": _WORKERS_MAX}
    workers = api.get("/workers", states, timeout_seconds=answer_seconds)
    return {
        "read_at": queues["read_at"],
        "queues": queues["items"],
        "queues_total": queues["total"],
        "workers": workers["items"],
    }


def _after_wish(api: Api, view: View, wish: Wish) -> View:
    try:
        action = _carried_out(api, wish)
    except (ApiRefused, ApiUnreachable) as error:
        return replace(view, message=error.message)
    limit = action["max_concurrent"]
    stands = (
        f"{'no limit' if limit is None else f'limit {limit}'}, {'' if action['paused'] else 'not '}paused"
    )
    return replace(after_change(view, action), message=f"{wish.ref}: {stands}")


def _carried_out(api: Api, wish: Wish) -> Json:
    if wish.verb != "limit":
        return api.post(f"/actions/{wish.ref}/{wish.verb}")
    action = api.get(f"/actions/{wish.ref}", timeout_seconds=_ANSWER_SECONDS)
    limit = stepped(action["max_concurrent"], wish.step)
    if limit is None:
        return action
    return api.patch(f"/actions/{wish.ref}", encode({"max_concurrent": limit}))
