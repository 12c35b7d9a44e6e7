"""`executor queue stats`: how the queues of an action stand, over the HTTP API (P10)."""

from collections.abc import Iterator

from common.command_line import command_line
from executor.cli.connection import Api, Json, with_api
from executor.cli.output import JsonOption, instant, print_fields, print_json, print_line, print_table
from executor.cli.refs import RefArgument

app = command_line("Look at queues.")

_REASONS = {
    "limit": "for a slot",
    "paused": "because the action is paused",
    "no_worker": "for a worker of its pool",
    "rate": "for the next hand-over",
}


@app.callback()
def group() -> None:
    """Look at queues."""


@app.command("stats")
@with_api
def stats(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show how the queues of an action stand, at one instant."""
    found = api.get(f"/actions/{ref}/queue-stats")
    if as_json:
        print_json(found)
        return
    print_fields(_fields(found))
    if found["by_key"]:
        print_line("")
        rows = ((key["concurrency_key"], key["queue_length"], key["active_count"]) for key in found["by_key"])
        print_table(("KEY", "WAITING", "ACTIVE"), rows, empty="")


def _fields(found: Json) -> Iterator[tuple[str, object]]:
    limit = found["max_concurrent"]
    yield "action", found["action_ref"]
    yield "paused", "yes" if found["paused"] else None
    yield "active", f"{found['active_count']}, {'no limit' if limit is None else f'limit {limit}'}"
    yield "waiting", found["queue_length"]
    for reason, count in found["waiting"].items():
        yield f"  {_REASONS.get(reason, reason)}", count or None
    yield "oldest since", instant(found["oldest_enqueued_at"])
    yield "enqueued ever", found["total_enqueued"]
    yield "completed ever", found["total_completed"]
    yield "last updated", instant(found["last_updated"])
