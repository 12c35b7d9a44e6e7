"""`executor workers list`: who is there, who left, who was lost, over the HTTP API."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from common.command_line import command_line
from executor.cli.connection import Api, Json, with_api
from executor.cli.output import JsonOption, instant, print_json, print_table, warn
from executor.cli.pages import read_pages

app = command_line("Look at workers.")

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
    """Look at workers."""


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
