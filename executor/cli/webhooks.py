"""`executor webhooks list | replay`, over the HTTP API."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from turnstile.common.cli import command_line
from turnstile.executor.cli.arguments import bad_input, encode, execution_id
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import YesOption, confirm_counted
from turnstile.executor.cli.output import Columns, JsonOption, counted, instant
from turnstile.executor.cli.pagination import (
    CursorOption,
    limit_of,
    print_handled,
    print_page,
    print_planned,
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
_MISSING: Final = "no webhook of this execution"

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
    limit: Annotated[int, limit_of("deliveries", 10_000)] = 50,
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
    *,
    ids: Annotated[
        list[int] | None,
        typer.Argument(metavar="ID", parser=execution_id, help="Execution ids, like 4711."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed deliveries.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many would be delivered again; change nothing.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver webhooks again: all failed ones, or the given ones in any final state.

    With --all, a terminal prompts for confirmation; without a terminal, --yes is needed. What --all replays:
    executor webhooks list --state failed
    """
    if bool(ids) == every:
        raise bad_input("give execution ids or --all, like: executor webhooks replay 2041")
    if dry_run:
        planned = _summed(_planned(api, ids or ()))
        summary = f"Would replay {counted(planned['left'], 'webhook')}"
        print_planned(planned, summary, missing=_MISSING, as_json=as_json)
        return
    confirmed = None
    if every:
        confirmed = confirm_counted(
            lambda: int(_summed(_planned(api, ()))["left"]),
            lambda failed: f"Deliver all failed webhooks again: {counted(failed, 'webhook')}?",
            yes=yes,
            destroys="--all posts every failed webhook again",
        )
    total = _summed(_results(api, ids or (), confirmed))
    print_handled(total, f"Replayed {counted(total['done'], 'webhook')}", missing=_MISSING, as_json=as_json)


def _planned(api: Api, ids: Sequence[int]) -> Iterator[Json]:
    """Yield the responses of dry runs: `left` webhooks that would be replayed."""
    if not ids:
        yield api.post("/webhooks/replay", encode({"all": True, "dry_run": True}))
    for start in range(0, len(ids), _BATCH_MAX):
        yield api.post("/webhooks/replay", encode({"ids": ids[start : start + _BATCH_MAX], "dry_run": True}))


def _results(api: Api, ids: Sequence[int], confirmed: int | None) -> Iterator[dict[str, Any]]:
    if not ids:
        yield repeat_until_done(
            api, "/webhooks/replay", {"all": True}, batch_max=_BATCH_MAX, confirmed=confirmed
        )
    for start in range(0, len(ids), _BATCH_MAX):
        # Failed webhooks that were not named are none of those that are left.
        yield {**api.post("/webhooks/replay", encode({"ids": ids[start : start + _BATCH_MAX]})), "left": 0}


def _summed(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"done": 0, "refused": [], "missing": [], "left": 0}
    for result in results:
        for name in total:
            total[name] += result[name]
    return total
