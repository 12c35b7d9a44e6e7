"""`executor workers list | drain`, over the HTTP API."""

from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import quote

import typer

from turnstile.common.cli import command_line
from turnstile.executor.cli.arguments import complete_worker
from turnstile.executor.cli.client import Api, with_api
from turnstile.executor.cli.output import Columns, JsonOption, for_each, instant
from turnstile.executor.cli.pagination import print_page, read_pages

_COLUMNS: Final[Columns] = {
    "WORKER": "id",
    "NAME": "name",
    "STATE": "state",
    "RUNNING": lambda worker: f"{worker['running']} of {worker['concurrency']}",
    "POOLS": lambda worker: ", ".join(worker["pools"]),
    "HOST": "host",
    "PID": "pid",
    "STARTED": lambda worker: instant(worker["started_at"]),
    "RENEWED": lambda worker: instant(worker["renewed_at"]),
}

app = command_line("List and drain workers.")


class WorkerState(StrEnum):
    """States of a worker in the API."""

    LIVE = "live"
    DRAINING = "draining"
    OVERDUE = "overdue"
    LOST = "lost"
    STOPPED = "stopped"


@app.command("list")
@with_api
def list_workers(
    api: Api,
    state: Annotated[
        list[WorkerState] | None,
        typer.Option(
            metavar="STATE", help=f"Workers in this state; repeatable. One of {', '.join(WorkerState)}."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of workers.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List workers, newest first."""
    query = {"state": [one.value for one in state] if state else None}
    found = read_pages(api, "/workers", query, limit=limit)
    print_page(found, _COLUMNS, empty="No workers", limit=limit, as_json=as_json, shows_cursor=False)


@app.command()
@with_api
def drain(
    api: Api,
    worker_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID", autocompletion=complete_worker, help="Worker ids, as in 'executor workers list'."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Drain workers: they start nothing new, finish or hand back their running executions, and stop."""
    for_each(
        worker_ids,
        lambda worker_id: api.post(f"/workers/{quote(worker_id, safe='')}/drain"),
        lambda worker_id, worker: f"{worker_id}: {worker['state']}; {worker['running']} still running",
        as_json=as_json,
    )
