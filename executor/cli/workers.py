"""`executor workers list | drain`: who is there, who left, who was lost; and have one leave."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import quote

import typer

from turnstile.common.command_line import EXIT_FAILED, command_line
from turnstile.executor.cli.connection import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.output import JsonOption, instant, print_json, print_line, print_table, warn
from turnstile.executor.cli.pages import read_pages
from turnstile.executor.cli.refs import complete_worker

app = command_line("Look at workers, and have one leave.")

_HEADINGS: Final = ("WORKER", "NAME", "STATE", "RUNNING", "POOLS", "HOST", "PID", "STARTED", "RENEWED")


class WorkerState(StrEnum):
    """How a worker stands; the same words as in the API."""

    LIVE = "live"
    DRAINING = "draining"
    OVERDUE = "overdue"
    LOST = "lost"
    STOPPED = "stopped"


@app.callback()
def group() -> None:
    """Look at workers, and have one leave."""


@app.command("list")
@with_api
def list_workers(
    api: Api,
    state: Annotated[
        list[WorkerState] | None,
        typer.Option(metavar="STATE", help=f"Only these; may be repeated. One of {', '.join(WorkerState)}."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most workers shown.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List workers, the newest first."""
    query = {"state": [one.value for one in state] if state else None}
    items, next_cursor = read_pages(api, "/workers", query, limit=limit)
    if as_json:
        print_json({"items": items, "next_cursor": next_cursor})
        return
    print_table(_HEADINGS, map(_row, items), empty="no workers")
    if next_cursor is not None:
        warn(f"there are more: --limit {limit * 2}")


@app.command()
@with_api
def drain(
    api: Api,
    worker_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID", autocompletion=complete_worker, help="As 'executor workers list' shows them."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Have workers take nothing new, end or give back what they run, and leave."""
    refused = 0
    for worker_id in worker_ids:
        try:
            worker = api.post(f"/workers/{quote(worker_id, safe='')}/drain")
        except ApiRefused as refusal:
            refused += 1
            warn(f"{worker_id}: {refusal.message}")
            continue
        if as_json:
            print_json(worker, on_one_line=True)
        else:
            print_line(f"{worker_id}: {worker['state']}; {worker['running']} still run")
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _row(worker: Json) -> Sequence[object]:
    return (
        worker["id"],
        worker["name"],
        worker["state"],
        f"{worker['running']} of {worker['concurrency']}",
        ", ".join(worker["pools"]),
        worker["host"],
        worker["pid"],
        instant(worker["started_at"]),
        instant(worker["renewed_at"]),
    )
