"""`executor resources ...`: capacities that several actions share, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import typer

from turnstile.common.cli import command_line
from turnstile.common.fields import STARTS_MAX, parse_period
from turnstile.executor.cli.arguments import (
    NO_LIMIT,
    RESOURCE_ARGUMENT,
    ResourceArgument,
    ResourcesArgument,
    limit_option,
    limit_or_none,
)
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, confirm_named
from turnstile.executor.cli.documents import ResourceDeletionPlan
from turnstile.executor.cli.gate_commands import WAITING_COLUMNS, GateKind, add_gate_commands, dates
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    for_each,
    instant,
    print_fields,
    show,
    warn,
)
from turnstile.executor.cli.pagination import print_all
from turnstile.executor.cli.values import shown
from turnstile.executor.definitions import RANK_MAX

_COLUMNS: Final[Columns] = {
    "RESOURCE": "name",
    "CAPACITY": lambda resource: shown("capacity", resource["capacity"]),
    "RANK": "rank",
    "ORDER": "order",
    "RATE": lambda resource: "" if resource["rate"] is None else shown("rate", resource["rate"]),
    "ACTIONS": "users",
    "PAUSED": lambda resource: "paused" if resource["paused"] else "",
}
_HOLDER_COLUMNS: Final[Columns] = {
    "HOLDER": "id",
    "ACTION": "action_ref",
    "KEY": "concurrency_key",
    "UNITS": "units",
    "STATUS": "status",
    "SINCE": lambda holder: instant(holder["passed_at"]),
}
_NO_RATE: Final[dict[str, Any]] = {}
_DIGITS_MAX: Final = 9

app = command_line("Manage resources, which several actions share: capacities, ranks and rates.")


def parse_rank(text: str) -> int:
    """Return a rank; -1 for "none"."""
    if text == "none":
        return NO_LIMIT
    if text.isascii() and text.isdigit() and 1 <= (rank := int(text[:_DIGITS_MAX])) <= RANK_MAX:
        return rank
    raise typer.BadParameter(f"invalid rank {text[:40]!r}; expected a number from 1 to {RANK_MAX}, or 'none'")


def parse_rate(text: str) -> dict[str, Any]:
    """Return a rate like "100/1m"; empty for "none"."""
    if text == "none":
        return _NO_RATE
    starts, _, per = text.partition("/")
    try:
        if not (starts.isascii() and starts.isdigit() and 1 <= int(starts[:_DIGITS_MAX]) <= STARTS_MAX):
            raise ValueError(f"expected 1 to {STARTS_MAX} starts")
        return {"starts": int(starts[:_DIGITS_MAX]), "per": parse_period(per)}
    except ValueError as error:
        raise typer.BadParameter(
            f"invalid rate {text[:40]!r}: {error}; expected STARTS/TIME, like 100/1m, or 'none'"
        ) from None


@app.command("list")
@with_api
def list_resources(api: Api, as_json: JsonOption = False) -> None:
    """List resources by name."""
    print_all(
        api,
        "/resources",
        _COLUMNS,
        empty="No resources; create one with 'executor resources put NAME --capacity NUMBER'",
        as_json=as_json,
    )


@app.command("get")
@with_api
def get_resource(api: Api, name: ResourceArgument, as_json: JsonOption = False) -> None:
    """Show the definition of a resource and the actions that use it."""
    show(api.get(f"/resources/{name}"), _print_resource, as_json=as_json)


@app.command("put")
@with_api
def put_resource(
    api: Api,
    name: ResourceArgument,
    *,
    capacity: Annotated[
        int | None,
        limit_option("Units that executions may hold together; 0: nothing starts; none: no limit."),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER|none",
            parser=parse_rank,
            help="Order in which resources are acquired: the lowest first. Give the scarcest the lowest.",
        ),
    ] = None,
    order: Annotated[
        Literal["arrival", "fair"] | None,
        typer.Option(
            metavar="arrival|fair",
            help="arrival: the oldest execution is first; fair: actions take turns by weight.",
        ),
    ] = None,
    rate: Annotated[
        dict[str, Any] | None,
        typer.Option(
            metavar="STARTS/TIME|none",
            parser=parse_rate,
            help="Maximum starts in any such time, like 100/1m.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a resource, or change it with immediate effect.

    Options that are not given change nothing; a new resource has no limit. Running executions continue above
    a lowered capacity.
    Example: executor resources put autocad --capacity 10 --rank 1
    """
    given: dict[str, Any] = {} if order is None else {"order": order}
    if capacity is not None:
        given["capacity"] = limit_or_none(capacity)
    if rank is not None:
        given["rank"] = limit_or_none(rank)
    if rate is not None:
        given["rate"] = rate or None
    _KIND.change(api, name, given, as_json=as_json)


@app.command("delete")
@with_api
def delete_resources(
    api: Api,
    names: ResourcesArgument,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete resources that no action uses and that nothing holds or waits for.

    A terminal prompts for confirmation; without one, --yes is needed.
    """
    if dry_run:
        for_each(names, lambda name: _in_use(api, name), _deletion_plan, as_json=as_json)
        return
    destroys = "a delete removes definitions"
    confirm_named(lambda: names, asks="Delete the resources", destroys=destroys, yes=yes)
    for_each(
        names,
        lambda name: api.delete(f"/resources/{name}", {}),
        lambda name, _: f"Deleted {name}",
        as_json=as_json,
    )


def _in_use(api: Api, name: str) -> ResourceDeletionPlan:
    """Return what keeps a resource from being deleted."""
    users = api.get(f"/resources/{name}")["users"]
    queue = api.get(f"/resources/{name}/queue", {"limit": 1})
    return ResourceDeletionPlan(name=name, users=users, held=queue["held"], waiting=queue["waiting"])


def _deletion_plan(name: str, found: ResourceDeletionPlan) -> str:
    if found.users:
        users = "1 action uses" if found.users == 1 else f"{found.users} actions use"
        return f"Would keep {name}: {users} it"
    if found.held or found.waiting:
        held = f"executions hold {found.held} units of it"
        return f"Would keep {name}: {held}, and {found.waiting} wait for it"
    return f"Would delete {name}"


def _print_resource(resource: Json) -> None:
    print_fields(_fields(resource))
    for warning in resource["warnings"]:
        warn(warning)


def _fields(resource: Json) -> Iterator[tuple[str, object]]:
    for name in ("name", "capacity", "rank", "order", "rate", "paused"):
        yield name, shown(name, resource[name])
    users = [shown("uses", [{**user, "resource": user["action_ref"]}]) for user in resource["used_by"]]
    more = resource["users"] - len(users)
    yield "used by", ", ".join(users) + (f" and {more} more" if more else "")
    yield from dates(resource)


def _state(resource: Json) -> str:
    return f"capacity {shown('capacity', resource['capacity'])}"


def _queue_fields(found: Json) -> Iterator[tuple[str, object]]:
    capacity = found["capacity"]
    yield "resource", found["resource"]
    yield "paused", "yes" if found["paused"] else None
    yield "order", found["order"]
    yield "held", f"{found['held']}, {'no limit' if capacity is None else f'capacity {capacity}'}"
    yield "held while waiting", found["held_waiting"] or None
    yield "waiting", found["waiting"]


_KIND: Final = GateKind(
    path="/resources",
    noun="resource",
    name=RESOURCE_ARGUMENT,
    state=_state,
    holders=_HOLDER_COLUMNS,
    no_holder="No unit is in use",
    waiting={
        **WAITING_COLUMNS,
        "UNITS": "units",
        "WAITING SINCE": lambda waiting: instant(waiting["arrived_at"]),
    },
    queue_fields=_queue_fields,
)
add_gate_commands(
    app,
    _KIND,
    pause="Pause resources: executions that use them do not start, running ones continue.",
    resume="Resume paused resources.",
    queue="List the holders of a resource and the executions that wait for it, in order.",
    history="List the changes of a resource: what, when and by whom, newest first.",
)
