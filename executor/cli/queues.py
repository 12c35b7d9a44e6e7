"""`executor queue stats` and `queue list`: statistics, slot holders and waiting executions (P10)."""

from collections.abc import Iterator
from typing import Annotated, Final

from turnstile.common.cli import command_line
from turnstile.executor.cli.arguments import RefArgument, option
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.execution_view import status_text
from turnstile.executor.cli.output import (
    Columns,
    CursorOption,
    JsonOption,
    QueueLimitOption,
    instant,
    print_fields,
    print_more,
    print_queue,
    show,
)

_REASONS: Final = {
    "limit": "for the limit",
    "total": "for the total of the action",
    "resource": "for the resource {name}",
    "rate": "for the rate of {name}",
    "pool": "for a worker slot of the pool {name}",
    "paused": "because the action is paused",
    "no_worker": "for a worker of the pool {name}",
}

_HOLDER_COLUMNS: Final[Columns] = {
    "SLOT HOLDER": "id",
    "KEY": "concurrency_key",
    "STATUS": status_text,
    "ATTEMPT": "attempt",
    "WORKER": "worker_id",
    "SINCE": lambda holder: instant(holder["granted_at"]),
}
_WAITING_COLUMNS: Final[Columns] = {
    "POSITION": "position",
    "ID": "id",
    "KEY": "concurrency_key",
    "QUEUED SINCE": lambda waiting: instant(waiting["queued_at"]),
}


def slots_in_use(queue: Json) -> int:
    """Return the slots of what runs, and of what holds one while it waits at a later gate."""
    held: int = queue["active_count"] + queue["held_waiting"]
    return held


def slots_text(queue: Json) -> str:
    """Return the slots in use with the limit of the queue, like 2 of 4."""
    limit = queue["max_concurrent"]
    return f"{slots_in_use(queue)}, no limit" if limit is None else f"{slots_in_use(queue)} of {limit}"


_KEY_COLUMNS: Final[Columns] = {
    "KEY": "concurrency_key",
    "WAITING": "queue_length",
    "SLOTS IN USE": slots_text,
}

app = command_line("Show statistics, slot holders and waiting executions.")


@app.command("stats")
@with_api
def stats(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show statistics of the queues of an action, from one snapshot."""
    show(api.get(f"/actions/{ref}/queue-stats"), _print_stats, as_json=as_json)


@app.command("line", hidden=True)
@app.command("list")
@with_api
def list_queue(
    api: Api,
    ref: RefArgument,
    *,
    concurrency_key: Annotated[str | None, option("KEY", "Only the queue of this key.")] = None,
    limit: QueueLimitOption = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the slot holders of an action and its waiting executions, in order."""
    query = {"concurrency_key": concurrency_key, "limit": limit, "cursor": cursor}
    show(api.get(f"/actions/{ref}/queue", query), _print_queue, as_json=as_json)


def _print_stats(found: Json) -> None:
    print_fields(_fields(found))
    print_more(_KEY_COLUMNS, found["by_key"])


def _print_queue(found: Json) -> None:
    print_queue(
        found,
        _HOLDER_COLUMNS,
        _WAITING_COLUMNS,
        no_holders="No slot is in use",
        nothing_waits="Queue is empty",
    )


def _fields(found: Json) -> Iterator[tuple[str, object]]:
    limit = found["max_concurrent"]
    yield "action", found["action_ref"]
    yield "paused", "yes" if found["paused"] else None
    of = "no limit" if limit is None else f"limit {limit}{' for each key' if found['by_key'] else ''}"
    yield "slots in use", f"{slots_in_use(found)}, {of}"
    yield "  held while waiting", found["held_waiting"] or None
    yield "waiting", found["queue_length"]
    for each in found["why"]:
        closed = f" ({each['closed'].replace('_', ' ')})" if each["closed"] else ""
        yield f"  {_REASONS.get(each['reason'], each['reason']).format(**each)}{closed}", each["count"]
    yield "oldest queued", instant(found["oldest_enqueued_at"])
    yield "total enqueued", found["total_enqueued"]
    yield "total completed", found["total_completed"]
    yield "last updated", instant(found["last_updated"])
