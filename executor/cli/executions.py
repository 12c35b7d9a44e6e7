"""`executor get` and `list`: look at executions, over the HTTP API."""

from typing import Annotated

import typer

from turnstile.executor.cli.arguments import ExecutionIdArgument
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.execution_view import (
    ATTEMPT_HEADINGS,
    LIST_HEADINGS,
    attempt_row,
    fields,
    list_row,
)
from turnstile.executor.cli.output import JsonOption, print_fields, print_json, print_line, print_table, warn
from turnstile.executor.cli.pages import read_pages
from turnstile.executor.cli.refs import RefOption
from turnstile.executor.cli.selection import (
    AfterOption,
    BeforeOption,
    KeyOption,
    MetadataOption,
    StatusOption,
    WorkerOption,
    as_query,
    selection,
)


@with_api
def get(api: Api, execution_id: ExecutionIdArgument, as_json: JsonOption = False) -> None:
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
    action: RefOption = None,
    status: StatusOption = None,
    concurrency_key: KeyOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    worker: WorkerOption = None,
    metadata: MetadataOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most executions shown.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the list before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List executions, the newest first."""
    wanted = selection(
        action=action,
        status=status,
        concurrency_key=concurrency_key,
        created_after=created_after,
        created_before=created_before,
        worker=worker,
        metadata=metadata,
    )
    items, next_cursor = read_pages(api, "/executions", as_query(wanted), limit=limit, cursor=cursor)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(LIST_HEADINGS, map(list_row, items), empty="no executions")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}, or --cursor {next_cursor}")
