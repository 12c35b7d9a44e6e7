"""`executor get`, `list` and `cancel`: look at executions and end them, over the HTTP API."""

from typing import Annotated, Any

import typer

from common.command_line import EXIT_FAILED
from common.domain.states import Status
from executor.cli.arguments import encode, instant_text
from executor.cli.connection import Api, ApiRefused, Json, with_api
from executor.cli.execution_view import ATTEMPT_HEADINGS, LIST_HEADINGS, attempt_row, fields, list_row
from executor.cli.output import JsonOption, print_fields, print_json, print_line, print_table, warn
from executor.cli.pages import read_pages


@with_api
def get(
    api: Api,
    execution_id: Annotated[int, typer.Argument(metavar="ID", min=1)],
    as_json: JsonOption = False,
) -> None:
    """Show an execution: how it stands, why it waits, what was tried."""
    execution = api.get(f"/executions/{execution_id}")
    if as_json:
        print_json(execution)
    else:
        print_execution(execution)


def print_execution(execution: Json) -> None:
    """Print one execution for people."""
    print_fields(fields(execution))
    if execution["attempts"]:
        print_line("")
        print_table(ATTEMPT_HEADINGS, map(attempt_row, execution["attempts"]), empty="")


@with_api
def list_executions(
    api: Api,
    *,
    action: Annotated[str | None, typer.Option(metavar="REF", help="Only executions of this action.")] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(metavar="STATUS", help=f"Only these; may be repeated. One of {', '.join(Status)}."),
    ] = None,
    concurrency_key: Annotated[str | None, typer.Option(help="Only the queue of this key.")] = None,
    created_after: Annotated[
        str | None, typer.Option(parser=instant_text, metavar="INSTANT", help="Like 2026-11-21T07:30:00Z.")
    ] = None,
    created_before: Annotated[
        str | None, typer.Option(parser=instant_text, metavar="INSTANT", help="Like 2026-11-21T07:30:00Z.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most executions shown.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the list before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List executions, the newest first."""
    query: dict[str, Any] = {
        "action_ref": action,
        "status": [one.value for one in status] if status else None,
        "concurrency_key": concurrency_key,
        "created_after": created_after,
        "created_before": created_before,
    }
    items, next_cursor = read_pages(api, "/executions", query, limit=limit, cursor=cursor)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(LIST_HEADINGS, map(list_row, items), empty="no executions")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}, or --cursor {next_cursor}")


@with_api
def cancel(
    api: Api,
    execution_ids: Annotated[list[int], typer.Argument(metavar="ID...", min=1)],
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    as_json: JsonOption = False,
) -> None:
    """End executions; those that run are asked to stop."""
    refused = 0
    body = encode({} if reason is None else {"reason": reason})
    for execution_id in execution_ids:
        try:
            answer = api.post(f"/executions/{execution_id}/cancel", body)
        except ApiRefused as refusal:
            refused += 1
            warn(f"{execution_id}: {refusal.message}")
            continue
        if as_json:
            print_json(answer, on_one_line=True)
        elif answer["status"] == "cancelled":
            print_line(f"{execution_id}: cancelled")
        else:
            print_line(f"{execution_id}: {answer['status']}; its worker was asked to stop it")
    if refused:
        raise typer.Exit(EXIT_FAILED)
