"""`executor workers list | show | drain | acknowledge`, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import quote

from turnstile.common.cli import command_line
from turnstile.common.domain.errors import Code
from turnstile.executor.cli.arguments import WORKER, argument, states_option
from turnstile.executor.cli.client import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, change_named
from turnstile.executor.cli.execution_view import error_text, stopping_sentence
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    Listing,
    counted,
    for_each,
    instant,
    limit_of,
    print_fields,
    print_line,
    print_more,
    show,
)


def state_text(worker: Json) -> str:
    """Return the state of a worker, and what an operator has to know of it."""
    more = ["not ready"] if worker["not_ready"] else ["acknowledged"] if worker["acknowledged_at"] else []
    return ", ".join([worker["state"], *more])


def running_text(worker: Json) -> str:
    """Return how many attempts a worker runs; of one that is gone, what it held then."""
    if worker["state"] not in ("lost", "stopped"):
        return f"{worker['running']} of {worker['concurrency']}"
    more = worker["held_count"] - len(worker["held_ids"])
    named = ", ".join(f"#{each}" for each in worker["held_ids"]) + (f" and {more} more" if more else "")
    return f"had {named}" if named else ""


_LIST: Final = Listing(
    path="/workers",
    empty="No workers",
    columns={
        "WORKER": "id",
        "NAME": "name",
        "STATE": state_text,
        "RUNNING": running_text,
        "POOLS": lambda worker: ", ".join(worker["pools"]),
        "HOST": "host",
        "PID": "pid",
        "STARTED": lambda worker: instant(worker["started_at"]),
        "RENEWED": lambda worker: instant(worker["renewed_at"]),
    },
    has_cursor=False,
)
_RUN_COLUMNS: Final[Columns] = {
    "RUNNING": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "ATTEMPT": "attempt",
    "STARTED": lambda run: instant(run["started_at"]),
    "STOPPING": lambda run: stopping_sentence(run["stopping"]),
}
_HELD_COLUMNS: Final[Columns] = {
    "HELD WHEN GONE": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "ATTEMPT": "attempt",
    "STARTED": lambda held: instant(held["started_at"]) or "not started",
    "NOW": "status",
}
_POOL_COLUMNS: Final[Columns] = {
    "POOL": "pool",
    "GRANTED": lambda pool: f"{pool['held']} of {pool['capacity']}",
    "WAITING QUEUES": "waiting_queues",
}
_FAILURE_COLUMNS: Final[Columns] = {
    "FAILED": "execution_id",
    "ACTION": "action_ref",
    "ATTEMPT": "attempt",
    "OUTCOME": "outcome",
    "ENDED": lambda failure: instant(failure["ended_at"]),
    "ERROR": lambda failure: error_text(failure["error"]),
}

_STATES: Final = ("live", "draining", "overdue", "lost", "stopped")

app = command_line("List, show, drain and acknowledge workers.")


@app.command("list")
@with_api
def list_workers(
    api: Api,
    state: Annotated[list[str] | None, states_option("Workers in this state", _STATES)] = None,
    limit: Annotated[int, limit_of("workers", 100_000)] = 50,
    as_json: JsonOption = False,
) -> None:
    """List workers, newest first."""
    _LIST.print_page(api, {"state": state or None}, limit=limit, as_json=as_json)


@app.command("show")
@with_api
def show_worker(
    api: Api,
    name: Annotated[
        str, argument(WORKER._replace(metavar="WORKER"), "Id or name of a worker ('executor workers list').")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show a worker: what it runs, its pools, its last failed attempts, and the warnings of its start."""
    show(api.get(_path(name)), _print_worker, as_json=as_json)


@app.command()
@with_api
def drain(
    api: Api,
    worker_ids: Annotated[list[str], argument(WORKER, "Worker ids, as in 'executor workers list'.")],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain workers: they start nothing new, finish or return their running executions, and stop.

    A terminal prompts for confirmation; without one, --yes is needed.
    """
    change_named(
        worker_ids,
        read=lambda worker_id: Json({**_read(api, worker_id), "dry_run": True}),
        plan=_drain_plan,
        asks="Drain the workers",
        destroys="a drained worker stops for good",
        names=lambda: [_load(api, each) for each in worker_ids],
        change=lambda worker_id: api.post(f"{_path(worker_id)}/drain"),
        changed=lambda worker_id, worker: f"{worker_id}: {worker['state']}; {drain_sentence(worker)}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@app.command()
@with_api
def acknowledge(
    api: Api,
    worker_ids: Annotated[list[str], argument(WORKER, "Ids of lost workers ('executor workers list').")],
    as_json: JsonOption = False,
) -> None:
    """Acknowledge the loss of workers: it needs no more attention, and is counted no more.

    Example: executor workers acknowledge 5f2b8c1e-7f0a-4a53-9d55-2f3f8f5f6a10
    """
    for_each(
        worker_ids,
        lambda worker_id: api.post(f"{_path(worker_id)}/acknowledge"),
        lambda worker_id, worker: f"{worker_id} ({worker['name']}): {state_text(worker)}",
        as_json=as_json,
    )


def _path(worker: str) -> str:
    return f"/workers/{quote(worker, safe='')}"


def _read(api: Api, worker_id: str) -> Json:
    """Return a worker; raises ApiRefused if there is none with this id, as a drain does."""
    worker = api.get(_path(worker_id))
    if worker["id"] != worker_id:
        detail = f"worker_id: it is the name of the worker {worker['id']}; give the id"
        raise ApiRefused({"code": Code.NOT_FOUND, "detail": detail})
    return worker


def _load(api: Api, worker_id: str) -> str:
    """Return a worker, and what it runs, for a question."""
    try:
        worker = _read(api, worker_id)
    except ApiRefused as refusal:
        return f"{worker_id} ({refusal.message})"
    state = "" if worker["state"] == "live" else f"{worker['state']}, "
    return f"{worker_id} ({worker['name']}, {state}{counted(worker['running'], 'attempt')} running)"


def _drain_plan(worker_id: str, worker: Json) -> str:
    if worker["state"] != "live":
        return f"Would not drain {worker_id}: it is {worker['state']}; only a live worker can be drained"
    return f"Would drain {worker_id} ({worker['name']}, {counted(worker['running'], 'attempt')} running)"


def _print_worker(worker: Json) -> None:
    print_fields(_fields(worker))
    print_more(_RUN_COLUMNS, worker["runs"])
    print_more(_HELD_COLUMNS, worker["held"])
    print_more(_POOL_COLUMNS, worker["pool_capacities"])
    print_more(_FAILURE_COLUMNS, worker["failures"])
    if worker["start_notes"]:
        print_line("\nWarnings and errors of its start:")
        for note in worker["start_notes"]:
            print_line(f"  {note}")


def _fields(worker: Json) -> Iterator[tuple[str, object]]:
    for name in ("id", "name", "state", "not_ready"):
        yield name, worker[name]
    yield "drain", drain_sentence(worker)
    yield "running", f"{worker['running']} of {worker['concurrency']}"
    yield "version", worker["version"]
    yield "host", f"{worker['host']}, process {worker['pid']}"
    if worker["actions"] is not None:
        yield "actions", ", ".join(action["action_ref"] for action in worker["actions"])
    for name in ("started_at", "renewed_at", "stopped_at", "lost_at", "acknowledged_at"):
        yield name, instant(worker[name])


def drain_sentence(worker: Json) -> str:
    """Return how far the drain of a worker is; empty if it does not drain."""
    if worker["state"] != "draining":
        return ""
    held, until = worker["draining_count"], worker["draining_until"]
    deadline = f"; what runs at {instant(until)} returns to the head of its queue" if until else ""
    return f"{worker['running']} of {held} attempts still running{deadline if worker['running'] else ''}"
