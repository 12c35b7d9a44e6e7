"""`executor webhooks list | replay`, over the HTTP API."""

from typing import Annotated, Any, Final

import typer

from turnstile.common.cli import bad_input, command_line
from turnstile.executor.cli.arguments import EXECUTION, argument, states_option
from turnstile.executor.cli.client import Api, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption
from turnstile.executor.cli.output import CursorOption, JsonOption, Listing, instant, limit_of
from turnstile.executor.cli.selections import Change, by_ids

_LIST: Final = Listing(
    path="/webhooks",
    empty="No webhooks",
    columns={
        "EXECUTION": "execution_id",
        "ACTION": "action_ref",
        "STATE": "state",
        "ATTEMPTS": "attempts",
        "DUE": lambda webhook: instant(webhook["due_at"] if webhook["state"] == "pending" else None),
        "LAST RESPONSE": lambda webhook: webhook["last_error"] or webhook["last_status"],
        "URL": "url",
    },
)
_REPLAY: Final = Change(
    path="/webhooks/replay",
    verb="replay",
    done="Replayed",
    noun="webhook",
    missing="no webhook of this execution",
    batch_max=1000,
    named_at_once=True,
)

_STATES: Final = ("pending", "delivered", "failed")

app = command_line("List webhook deliveries and replay them.")


@app.command("list")
@with_api
def list_webhooks(
    api: Api,
    state: Annotated[list[str] | None, states_option("Deliveries in this state", _STATES)] = None,
    limit: Annotated[int, limit_of("deliveries", 10_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List webhook deliveries, newest execution first."""
    _LIST.print_page(api, {"state": state or None}, limit=limit, cursor=cursor, as_json=as_json)


@app.command()
@with_api
def replay(
    api: Api,
    *,
    ids: Annotated[list[int] | None, argument(EXECUTION, "Execution ids, like 4711.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All failed deliveries.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deliver webhooks again: all failed ones, or the given ones in any final state.

    With --all, a terminal prompts for confirmation; without a terminal, --yes is needed. What --all replays:
    executor webhooks list --state failed
    """
    if bool(ids) == every:
        raise bad_input("give execution ids or --all, like: executor webhooks replay 2041")
    selections: list[dict[str, Any]] = by_ids(ids) if ids else [{"all": True}]
    _REPLAY.run(
        api,
        selections,
        question="Deliver all failed webhooks again: {}?",
        destroys="--all posts every failed webhook again" if every else None,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
