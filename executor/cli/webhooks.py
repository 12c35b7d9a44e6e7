"""`executor webhooks list | replay`, over the HTTP API."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from turnstile.common.cli import command_line
from turnstile.executor.cli.arguments import bad_input, encode, execution_id
from turnstile.executor.cli.client import Api, with_api
from turnstile.executor.cli.confirmation import YesOption, confirm
from turnstile.executor.cli.output import Columns, JsonOption, instant
from turnstile.executor.cli.pagination import (
    CursorOption,
    print_handled,
    print_page,
    read_pages,
    repeat_until_done,
)

_COLUMNS: Final[Columns] = {
    "EXECUTION": "execution_id",
    "ACTION": "action_ref",
    "STATE": "state",
    "ATTEMPTS": "attempts",
    "DUE": lambda webhook: instant(webhook["due_at"] if webhook["state"] == State.PENDING else None),
    "LAST RESPONSE": lambda webhook: webhook["last_error"] or webhook["last_status"],
    "URL": "url",
}
_BATCH_MAX: Final = 1000

app = command_line("List webhook deliveries and replay them.")


class State(StrEnum):
    """States of a webhook delivery in the API."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@app.command("list")
@with_api
def list_webhooks(
    api: Api,
    state: Annotated[
        list[State] | None,
        typer.Option(
            metavar="STATE", help=f"Deliveries in this state; repeatable. One of {', '.join(State)}."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="NUMBER", help="Maximum number of deliveries.")
    ] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List webhook deliveries, newest execution first."""
    query = {"state": [one.value for one in state] if state else None}
    found = read_pages(api, "/webhooks", query, limit=limit, cursor=cursor)
    print_page(found, _COLUMNS, empty="No webhooks", limit=limit, as_json=as_json)


@app.command()
@with_api
def replay(
    api: Api,
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", parser=execution_id, help="Execution ids, like 4711."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed deliveries.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver webhooks again: all failed ones, or the given ones in any final state.

    With --all, a terminal prompts for confirmation; without a terminal, --yes is needed. What --all replays:
    executor webhooks list --state failed
    """
    if bool(ids) == every:
        raise bad_input("give execution ids or --all, like: executor webhooks replay 2041")
    if every:
        confirm(
            lambda: "Deliver all failed webhooks again?",
            yes=yes,
            destroys="--all posts every failed webhook again",
            has_dry_run=False,
        )
    total: dict[str, Any] = {"done": 0, "refused": [], "missing": []}
    for result in _results(api, ids or ()):
        for name in total:
            total[name] += result[name]
    print_handled(
        total,
        f"Replayed {total['done']} {'webhook' if total['done'] == 1 else 'webhooks'}",
        missing="no webhook of this execution",
        as_json=as_json,
    )


def _results(api: Api, ids: Sequence[int]) -> Iterator[dict[str, Any]]:
    path = "/webhooks/replay"
    if not ids:
        yield repeat_until_done(api, path, {"all": True}, batch_max=_BATCH_MAX)
    for start in range(0, len(ids), _BATCH_MAX):
        yield api.post(path, encode({"ids": ids[start : start + _BATCH_MAX]}))
