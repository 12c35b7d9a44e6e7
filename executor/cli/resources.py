"""`executor resources ...`: capacities that several actions share, over the HTTP API."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import typer

from turnstile.common.cli import command_line
from turnstile.common.fields import STARTS_MAX, parse_period
from turnstile.executor.cli.arguments import (
    LIMIT,
    RESOURCE_ARGUMENT,
    Kind,
    given,
    number_of,
    option,
    or_none,
    whole_number,
)
from turnstile.executor.cli.client import Api, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, change_named
from turnstile.executor.cli.definition_commands import Definitions, Queue, dates, paused_cell
from turnstile.executor.cli.documents import ResourceDeletionPlan
from turnstile.executor.cli.output import JsonOption, instant, print_fields, shown, warn
from turnstile.executor.definitions import RANK_MAX

app = command_line("Manage resources, which several actions share: capacities, ranks and rates.")


def parse_rate(text: str) -> dict[str, Any]:
    """Return a rate like "100/1m"."""
    starts, _, per = text.partition("/")
    try:
        number = whole_number(starts)
        if number is None or not 1 <= number <= STARTS_MAX:
            raise ValueError(f"expected 1 to {STARTS_MAX} starts")
        return {"starts": number, "per": parse_period(per)}
    except ValueError as error:
        raise typer.BadParameter(
            f"invalid rate {text[:40]!r}: {error}; expected STARTS/TIME, like 100/1m, or 'none'"
        ) from None


_RANK: Final = Kind(
    "NUMBER|none", or_none(number_of("rank", 1, RANK_MAX, like=f"from 1 to {RANK_MAX}, or 'none'"))
)
RATE: Final = Kind("STARTS/TIME|none", or_none(parse_rate))


def _state(resource: Json) -> str:
    return f"capacity {shown('capacity', resource['capacity'])}"


_RESOURCES: Final = Definitions(app=app, noun="resource", name=RESOURCE_ARGUMENT, state=_state)


def _held(resource: Json) -> str:
    held = "" if resource["held"] is None else f"{resource['held']} of "
    return f"{held}{shown('capacity', resource['capacity'])}"


def _print_resource(resource: Json) -> None:
    print_fields(_fields(resource))
    for warning in resource["warnings"]:
        warn(warning)


def _fields(resource: Json) -> Iterator[tuple[str, object]]:
    for name in ("name", "capacity", "rank", "order", "rate", "paused"):
        yield name, shown(name, resource[name])
    yield "held", resource["held"]
    yield "held while waiting", resource["held_waiting"] or None
    yield "waiting", resource["waiting"]
    users = [shown("uses", [{**user, "resource": user["action_ref"]}]) for user in resource["used_by"]]
    more = resource["users"] - len(users)
    yield "used by", ", ".join(users) + (f" and {more} more" if more else "")
    yield from dates(resource)


def _queue_fields(found: Json) -> Iterator[tuple[str, object]]:
    capacity = found["capacity"]
    yield "resource", found["resource"]
    yield "paused", "yes" if found["paused"] else None
    yield "order", found["order"]
    yield "held", f"{found['held']}, {'no limit' if capacity is None else f'capacity {capacity}'}"
    yield "held while waiting", found["held_waiting"] or None
    yield "waiting", found["waiting"]


_RESOURCES.add_list(
    "List resources by name.",
    empty="No resources; create one with 'executor resources put NAME --capacity NUMBER'",
    columns={
        "RESOURCE": "name",
        "HELD": _held,
        "WAITING": "waiting",
        "RANK": "rank",
        "ORDER": "order",
        "RATE": lambda resource: "" if resource["rate"] is None else shown("rate", resource["rate"]),
        "ACTIONS": "users",
        "PAUSED": paused_cell,
    },
)
_RESOURCES.add_show("get", "Show the definition of a resource and the actions that use it.", _print_resource)


@app.command("put")
@with_api
def put_resource(
    api: Api,
    name: Annotated[str, RESOURCE_ARGUMENT],
    *,
    capacity: Annotated[
        object, option(LIMIT, "Units that executions may hold together; 0: nothing starts; none: no limit.")
    ] = None,
    rank: Annotated[
        object,
        option(
            _RANK, "Order in which resources are acquired: the lowest first. Give the scarcest the lowest."
        ),
    ] = None,
    order: Annotated[
        Literal["arrival", "fair"] | None,
        option("arrival|fair", "arrival: the oldest execution is first; fair: actions take turns by weight."),
    ] = None,
    rate: Annotated[object, option(RATE, "Maximum starts in any such time, like 100/1m.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a resource, or change it with immediate effect.

    Options that are not given change nothing; a new resource has no limit. Running executions continue above
    a lowered capacity.
    Example: executor resources put autocad --capacity 10 --rank 1
    """
    fields = given(capacity=capacity, rank=rank, order=order, rate=rate)
    _RESOURCES.change(api, name, fields, as_json=as_json)


@app.command("delete")
@with_api
def delete_resources(
    api: Api,
    names: Annotated[list[str], RESOURCE_ARGUMENT],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete resources that no action uses and that nothing holds or waits for.

    A terminal prompts for confirmation; without one, --yes is needed.
    """
    change_named(
        names,
        read=lambda name: _in_use(api, name),
        plan=_deletion_plan,
        asks="Delete the resources",
        destroys="a delete removes definitions",
        change=lambda name: api.delete(_RESOURCES.path(name)),
        changed=lambda name, _: f"Deleted {name}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def _in_use(api: Api, name: str) -> ResourceDeletionPlan:
    """Return what keeps a resource from being deleted."""
    path = _RESOURCES.path(name)
    users = api.get(path)["users"]
    queue = api.get(f"{path}/queue", {"limit": 1})
    return ResourceDeletionPlan(name=name, users=users, held=queue["held"], waiting=queue["waiting"])


def _deletion_plan(name: str, found: ResourceDeletionPlan) -> str:
    if found.users:
        users = "1 action uses" if found.users == 1 else f"{found.users} actions use"
        return f"Would keep {name}: {users} it"
    if found.held or found.waiting:
        held = f"executions hold {found.held} units of it"
        return f"Would keep {name}: {held}, and {found.waiting} wait for it"
    return f"Would delete {name}"


_RESOURCES.add_switch(
    "pause", "Pause resources: executions that use them do not start, running ones continue."
)
_RESOURCES.add_switch("resume", "Resume paused resources.")
_RESOURCES.add_queue(
    "List the holders of a resource and the executions that wait for it, in order.",
    Queue(
        fields=_queue_fields,
        holders={
            "HOLDER": "id",
            "ACTION": "action_ref",
            "KEY": "concurrency_key",
            "UNITS": "units",
            "STATUS": "status",
            "SINCE": lambda holder: instant(holder["passed_at"]),
        },
        no_holder="No unit is in use",
        waiting={"UNITS": "units", "WAITING SINCE": lambda waiting: instant(waiting["arrived_at"])},
    ),
)
_RESOURCES.add_changes("history", "List the changes of a resource: what, when and by whom, newest first.")
