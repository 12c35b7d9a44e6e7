"""`executor pools ...`: order, weights and pause of the pools of workers, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import typer

from turnstile.common.cli import command_line
from turnstile.common.fields import WEIGHT_MAX, check_ref
from turnstile.executor.cli.arguments import POOL_ARGUMENT, Kind, given, option, whole_number
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.definition_commands import Definitions, Queue, dates, paused_cell
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    instant,
    print_fields,
    print_line,
    print_table,
    shown,
    warn,
)

_ACTION_COLUMNS: Final[Columns] = {
    "ACTION": "action_ref",
    "WEIGHT": "weight",
    "WORKERS": lambda action: "" if action["served"] else "no worker serves it",
}

app = command_line("Manage pools of workers: order, weights, pause and resume.")


def parse_weight(text: str) -> tuple[str, int]:
    """Return an action and its weight, like "reports.render=3"."""
    ref, _, weight = text.rpartition("=")
    try:
        check_ref(ref)
        number = whole_number(weight)
        if number is not None and 1 <= number <= WEIGHT_MAX:
            return ref, number
        problem = f"expected a weight from 1 to {WEIGHT_MAX}"
    except ValueError as error:
        problem = str(error)
    raise typer.BadParameter(f"invalid weight {text[:60]!r}: {problem}; expected REF=NUMBER, like a.b=3")


def _state(pool: Json) -> str:
    weights = f", weights {shown('weights', pool['weights'])}" if pool["weights"] else ""
    return f"order {pool['order']}{weights}"


_POOLS: Final = Definitions(app=app, noun="pool", name=POOL_ARGUMENT, state=_state)


def _granted(pool: Json) -> str:
    return "unknown: no leader answers" if pool["held"] is None else f"{pool['held']} of {pool['capacity']}"


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


def _queue_fields(found: Json) -> Iterator[tuple[str, object]]:
    yield "pool", found["pool"]
    yield "paused", "yes" if found["paused"] else None
    yield "order", found["order"]
    yield "granted", f"{found['held']} of {found['capacity']}"
    yield "waiting", found["waiting"]


_POOLS.add_list(
    "List pools by name, with their capacity and what waits for it.",
    empty="No pools. The first action or worker of a pool creates it",
    columns={
        "POOL": "name",
        "GRANTED": _granted,
        "WAITING": "waiting",
        "ORDER": "order",
        "WEIGHTS": lambda pool: shown("weights", pool["weights"]) if pool["weights"] else "",
        "ACTIONS": "actions",
        "PAUSED": paused_cell,
    },
)
_POOLS.add_show("show", "Show a pool: its settings, its state and its actions.", _print_pool)


@app.command("set")
@with_api
def set_pool(
    api: Api,
    name: Annotated[str, POOL_ARGUMENT],
    *,
    order: Annotated[
        Literal["fair", "arrival"] | None,
        option("fair|arrival", "fair: actions take turns by weight; arrival: the oldest execution is first."),
    ] = None,
    weights: Annotated[
        list[Any] | None,
        option(
            Kind("REF=NUMBER", parse_weight),
            f"Share of an action with the order fair, 1 to {WEIGHT_MAX}; 1 is the default. Repeatable.",
            "--weight",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the order of a pool, or weights of actions in it, with immediate effect.

    Options and weights that are not given change nothing. A pool that does not exist is created.
    Example: executor pools set default --weight a.b=3
    """
    fields = given(order=order, weights=dict(weights) if weights else None)
    _POOLS.change(api, name, fields, as_json=as_json)


_POOLS.add_switch("pause", "Pause pools: nothing in them starts, running executions continue.")
_POOLS.add_switch("resume", "Resume paused pools.")
_POOLS.add_queue(
    "List the executions that hold worker slots of a pool, and those that wait for one, in order.",
    Queue(
        fields=_queue_fields,
        holders={
            "HOLDER": "id",
            "ACTION": "action_ref",
            "KEY": "concurrency_key",
            "STATUS": "status",
            "WORKER": "worker_id",
            "SINCE": lambda holder: instant(holder["granted_at"]),
        },
        no_holder="No worker slot is in use",
        waiting={"QUEUED": lambda waiting: instant(waiting["queued_at"])},
    ),
)
_POOLS.add_changes("history", "List the changes of a pool: what, when and by whom, newest first.")
