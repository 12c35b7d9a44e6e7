"""`executor pools ...`: order, weights and pause of the pools of workers, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import typer

from turnstile.common.cli import command_line
from turnstile.common.fields import WEIGHT_MAX, check_ref
from turnstile.executor.cli.arguments import POOL_ARGUMENT, PoolArgument
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.gate_commands import WAITING_COLUMNS, GateKind, add_gate_commands, dates
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
from turnstile.executor.cli.pagination import print_all
from turnstile.executor.cli.values import shown


def _granted(pool: Json) -> str:
    return "unknown: no leader answers" if pool["held"] is None else f"{pool['held']} of {pool['capacity']}"


_COLUMNS: Final[Columns] = {
    "POOL": "name",
    "GRANTED": _granted,
    "WAITING": "waiting",
    "ORDER": "order",
    "WEIGHTS": lambda pool: shown("weights", pool["weights"]) if pool["weights"] else "",
    "ACTIONS": "actions",
    "PAUSED": lambda pool: "paused" if pool["paused"] else "",
}
_ACTION_COLUMNS: Final[Columns] = {
    "ACTION": "action_ref",
    "WEIGHT": "weight",
    "WORKERS": lambda action: "" if action["served"] else "no worker serves it",
}
_HOLDER_COLUMNS: Final[Columns] = {
    "HOLDER": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "STATUS": "status",
    "WORKER": "worker_id",
    "SINCE": lambda holder: instant(holder["granted_at"]),
}
app = command_line("Manage pools of workers: order, weights, pause and resume.")


def parse_weight(text: str) -> tuple[str, int]:
    """Return an action and its weight, like "reports.render=3"."""
    ref, _, weight = text.rpartition("=")
    try:
        check_ref(ref)
        if weight.isascii() and weight.isdigit() and 1 <= (number := int(weight[:9])) <= WEIGHT_MAX:
            return ref, number
        problem = f"expected a weight from 1 to {WEIGHT_MAX}"
    except ValueError as error:
        problem = str(error)
    raise typer.BadParameter(f"invalid weight {text[:60]!r}: {problem}; expected REF=NUMBER, like a.b=3")


@app.command("list")
@with_api
def list_pools(api: Api, as_json: JsonOption = False) -> None:
    """List pools by name, with their capacity and what waits for it."""
    print_all(
        api,
        "/pools",
        _COLUMNS,
        empty="No pools. The first action or worker of a pool creates it",
        as_json=as_json,
    )


@app.command("show")
@with_api
def show_pool(api: Api, name: PoolArgument, as_json: JsonOption = False) -> None:
    """Show a pool: its settings, its state and its actions."""
    show(api.get(f"/pools/{name}"), _print_pool, as_json=as_json)


@app.command("set")
@with_api
def set_pool(
    api: Api,
    name: PoolArgument,
    *,
    order: Annotated[
        Literal["fair", "arrival"] | None,
        typer.Option(
            metavar="fair|arrival",
            help="fair: actions take turns by weight; arrival: the oldest execution is first.",
        ),
    ] = None,
    weights: Annotated[
        list[Any] | None,
        typer.Option(
            "--weight",
            metavar="REF=NUMBER",
            parser=parse_weight,
            help=f"Share of an action with the order fair, 1 to {WEIGHT_MAX}; 1 is the default. Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the order of a pool, or weights of actions in it, with immediate effect.

    Options and weights that are not given change nothing. A pool that does not exist is created.
    Example: executor pools set default --weight a.b=3
    """
    given: dict[str, Any] = {} if order is None else {"order": order}
    if weights:
        given["weights"] = dict(weights)
    _KIND.change(api, name, given, as_json=as_json)


def _print_pool(pool: Json) -> None:
    print_fields(_fields(pool))
    print_line("")
    print_table(_ACTION_COLUMNS, pool["action_weights"], empty="No action is in this pool")
    if (more := pool["actions"] - len(pool["action_weights"])) > 0:
        print_line(f"and {more} more")
    for warning in pool["warnings"]:
        warn(warning)


def _fields(pool: Json) -> Iterator[tuple[str, object]]:
    yield "name", pool["name"]
    for name in ("order", "weights", "paused"):
        yield name, shown(name, pool[name])
    yield "granted", _granted(pool)
    yield "waiting", pool["waiting"]
    yield "wanted", pool["wanted"]
    yield from dates(pool)


def _state(pool: Json) -> str:
    weights = f", weights {shown('weights', pool['weights'])}" if pool["weights"] else ""
    return f"order {pool['order']}{weights}"


def _queue_fields(found: Json) -> Iterator[tuple[str, object]]:
    yield "pool", found["pool"]
    yield "paused", "yes" if found["paused"] else None
    yield "order", found["order"]
    yield "granted", f"{found['held']} of {found['capacity']}"
    yield "waiting", found["waiting"]


_KIND: Final = GateKind(
    path="/pools",
    noun="pool",
    name=POOL_ARGUMENT,
    state=_state,
    holders=_HOLDER_COLUMNS,
    no_holder="No worker slot is in use",
    waiting={**WAITING_COLUMNS, "QUEUED": lambda waiting: instant(waiting["queued_at"])},
    queue_fields=_queue_fields,
)
add_gate_commands(
    app,
    _KIND,
    pause="Pause pools: nothing in them starts, running executions continue.",
    resume="Resume paused pools.",
    queue="List the executions that hold worker slots of a pool, and those that wait for one, in order.",
    history="List the changes of a pool: what, when and by whom, newest first.",
)
