"""`executor resources queue NAME`: who holds units of a resource, and who waits for it (P10)."""

from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import quote

import typer

from turnstile.executor.cli.arguments import ResourceArgument
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    instant,
    print_fields,
    print_line,
    print_table,
    show,
    warn,
)
from turnstile.executor.cli.pagination import CursorOption

_HOLDER_COLUMNS: Final[Columns] = {
    "HOLDER": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "UNITS": "units",
    "STATUS": "status",
    "SINCE": lambda holder: instant(holder["passed_at"]),
}
_WAITING_COLUMNS: Final[Columns] = {
    "POSITION": "position",
    "ID": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "PRIORITY": "priority",
    "UNITS": "units",
    "WAITING SINCE": lambda waiting: instant(waiting["arrived_at"]),
}


@with_api
def resource_queue(
    api: Api,
    name: ResourceArgument,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of waiting executions.")] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the holders of a resource and the executions that wait for it, in order."""
    query = {"limit": limit, "cursor": cursor}
    show(api.get(f"/resources/{quote(name, safe='')}/queue", query), _print_queue, as_json=as_json)


def _print_queue(found: Json) -> None:
    print_fields(_fields(found))
    print_line("")
    print_table(_HOLDER_COLUMNS, found["holders"], empty="No unit is in use")
    print_line("")
    print_table(_WAITING_COLUMNS, found["items"], empty="Nothing waits here")
    if found["next_cursor"] is not None:
        warn(f"more available: --cursor {found['next_cursor']}")


def _fields(found: Json) -> Iterator[tuple[str, object]]:
    capacity = found["capacity"]
    yield "resource", found["resource"]
    yield "paused", "yes" if found["paused"] else None
    yield "order", found["order"]
    yield "held", f"{found['held']}, {'no limit' if capacity is None else f'capacity {capacity}'}"
    yield "held while waiting", found["held_waiting"] or None
    yield "waiting", found["waiting"]
