"""`executor webhooks list | replay`, over the HTTP API: ends on their way to the URLs that asked for them."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final

import typer

from turnstile.common.command_line import EXIT_FAILED, command_line
from turnstile.executor.cli.arguments import bad_input, encode
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.output import JsonOption, instant, print_json, print_line, print_table, warn
from turnstile.executor.cli.pages import read_pages

app = command_line("Look at webhooks, and have them posted once more.")

_HEADINGS: Final = ("EXECUTION", "ACTION", "STATE", "ATTEMPTS", "DUE", "LAST", "URL")
_AT_ONCE_MAX: Final = 1000


class State(StrEnum):
    """How a webhook stands; the same words as in the API."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@app.callback()
def group() -> None:
    """Look at webhooks, and have them posted once more."""


@app.command("list")
@with_api
def list_webhooks(
    api: Api,
    state: Annotated[
        list[State] | None,
        typer.Option(metavar="STATE", help=f"Only these; may be repeated. One of {', '.join(State)}."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most webhooks shown.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the list before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List webhooks, those of the newest executions first."""
    query = {"state": [one.value for one in state] if state else None}
    items, next_cursor = read_pages(api, "/webhooks", query, limit=limit, cursor=cursor)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(_HEADINGS, map(_row, items), empty="no webhooks")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}, or --cursor {next_cursor}")


@app.command()
@with_api
def replay(
    api: Api,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID...]", min=1, help="Ids of executions.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that have failed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have webhooks posted once more, at once: those that failed, or by id delivered ones too."""
    if bool(ids) == every:
        raise bad_input("say which: ids of executions, or --all, like: executor webhooks replay 2041")
    total = _in_rounds(api, list(_selections(ids)))
    if as_json:
        print_json(total)
    else:
        print_line(f"{total['done']} posted once more")
        for refused in total["refused"]:
            warn(f"{refused['id']}: {refused['reason']}")
        for missing in total["missing"]:
            warn(f"{missing}: not_found: no webhook of this execution")
    if total["refused"] or total["missing"]:
        raise typer.Exit(EXIT_FAILED)


def _selections(ids: Sequence[int] | None) -> Iterator[dict[str, Any]]:
    if ids is None or not ids:
        yield {"all": True}
        return
    rest = iter(ids)
    while part := list(islice(rest, _AT_ONCE_MAX)):
        yield {"ids": part}


def _in_rounds(api: Api, selections: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ask for each part; for all that failed ask on until those that were there at first are through."""
    total: dict[str, Any] = {"done": 0, "refused": [], "missing": []}
    for selection in selections:
        answer = api.post("/webhooks/replay", encode(selection))
        at_first = answer["done"] + answer["left"]
        total["done"] += answer["done"]
        while "all" in selection and answer["left"] and answer["done"] and total["done"] < at_first:
            most = min(at_first - total["done"], _AT_ONCE_MAX)
            answer = api.post("/webhooks/replay", encode({**selection, "limit": most}))
            total["done"] += answer["done"]
        total["refused"] += answer["refused"]
        total["missing"] += answer["missing"]
    return total


def _row(webhook: Json) -> Sequence[object]:
    due = webhook["due_at"] if webhook["state"] == State.PENDING else None
    return (
        webhook["execution_id"],
        webhook["action_ref"],
        webhook["state"],
        webhook["attempts"],
        instant(due),
        webhook["last_error"] or webhook["last_status"],
        webhook["url"],
    )
