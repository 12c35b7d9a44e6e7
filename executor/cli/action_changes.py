"""`executor actions pause | resume | limit | changes`: what changes while it runs, and what did, by whom."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.action_values import shown
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.connection import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.output import (
    JsonOption,
    compact,
    instant,
    print_json,
    print_line,
    print_table,
    warn,
)
from turnstile.executor.cli.pages import read_pages
from turnstile.executor.cli.refs import RefArgument, RefsArgument

_HEADINGS: Final = ("CHANGED", "BY", "CHANGE", "WHAT")
_LIMIT_MAX: Final = 1_000_000


def _limit(text: str) -> int:
    """Return a limit; -1 stands for none, since a parser's None would mean that nothing was given."""
    if text == "none":
        return -1
    # Of a number beyond all only so much is read that it is too large.
    if text.isascii() and text.isdigit() and (limit := int(text.lstrip("0")[:9] or "0")) <= _LIMIT_MAX:
        return limit
    raise typer.BadParameter(
        f"{text[:40]!r} is not a limit; expected a number from 0 to {_LIMIT_MAX}, like 4, or 'none'"
    )


@with_api
def pause_actions(api: Api, refs: RefsArgument, as_json: JsonOption = False) -> None:
    """Pause actions: what is asked for waits in line, what runs goes on."""
    _each(refs, lambda ref: api.post(f"/actions/{ref}/pause"), as_json=as_json)


@with_api
def resume_actions(api: Api, refs: RefsArgument, as_json: JsonOption = False) -> None:
    """Let paused actions start again."""
    _each(refs, lambda ref: api.post(f"/actions/{ref}/resume"), as_json=as_json)


@with_api
def limit_action(
    api: Api,
    ref: RefArgument,
    max_concurrent: Annotated[
        int,
        typer.Argument(metavar="NUMBER|none", parser=_limit, help="Slots of each queue; 0: nothing starts."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Change the limit of an action; it holds at once.

    What runs above a lowered limit may end. Example: executor actions limit reports.render 4
    """
    body = encode({"max_concurrent": None if max_concurrent < 0 else max_concurrent})
    _each([ref], lambda name: api.patch(f"/actions/{name}", body), as_json=as_json)


@with_api
def list_changes(
    api: Api,
    ref: RefArgument,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most changes shown.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show what was changed of an action, by whom and when, the newest first."""
    items, next_cursor = read_pages(api, f"/actions/{ref}/changes", {}, limit=limit)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(_HEADINGS, map(_row, items), empty="no changes are known")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}")


def _each(refs: Sequence[str], ask: Callable[[str], Json], *, as_json: bool) -> None:
    refused = 0
    for ref in refs:
        try:
            action = ask(ref)
        except ApiRefused as refusal:
            refused += 1
            warn(f"{ref}: {refusal.message}")
            continue
        if as_json:
            print_json(action, on_one_line=True)
        else:
            stands = "paused" if action["paused"] else "not paused"
            print_line(f"{ref}: limit {shown('max_concurrent', action['max_concurrent'])}, {stands}")
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _row(change: Json) -> Sequence[object]:
    old, new = change["old"], change["new"]
    what = ", ".join(
        f"{field}: {_value(field, old)} -> {_value(field, new)}" for field in sorted(old.keys() | new.keys())
    )
    return (instant(change["changed_at"]), change["changed_by"], change["change"], what)


def _value(field: str, values: Json) -> str:
    if field not in values:
        return "-"
    value = values[field]
    return shown(field, value) if not isinstance(value, dict) else compact(value)
