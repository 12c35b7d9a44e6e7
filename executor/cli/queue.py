"""`executor queue stats` and `line`: how queues stand, who waits and who holds the slots (P10)."""

from collections.abc import Iterator
from typing import Annotated

import typer

from turnstile.common.command_line import command_line
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.output import (
    JsonOption,
    instant,
    print_fields,
    print_json,
    print_line,
    print_table,
    warn,
)
from turnstile.executor.cli.refs import RefArgument

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


@app.command("line")
@with_api
def line(
    api: Api,
    ref: RefArgument,
    *,
    concurrency_key: Annotated[str | None, typer.Option(help="Only the line of this key.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most places shown.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the line before.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who holds the slots of an action, and who waits for them, in order."""
    asked = {"concurrency_key": concurrency_key, "limit": limit, "cursor": cursor}
    found = api.get(f"/actions/{ref}/queue", asked)
    if as_json:
        print_json(found)
        return
    print_table(
        ("HOLDS A SLOT", "KEY", "STATUS", "ATTEMPT", "WORKER", "SINCE"),
        (
            (
                h["id"],
                h["concurrency_key"],
                h["status"],
                h["attempt"],
                h["worker_id"],
                instant(h["granted_at"]),
            )
            for h in found["holders"]
        ),
        empty="no slot is held",
    )
    print_line("")
    print_table(
        ("POSITION", "ID", "KEY", "WAITS SINCE"),
        (
            (each["position"], each["id"], each["concurrency_key"], instant(each["queued_at"]))
            for each in found["items"]
        ),
        empty="nobody waits",
    )
    if found["next_cursor"] is not None:
        warn(f"there are more: --cursor {found['next_cursor']}")


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
