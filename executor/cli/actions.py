"""`executor actions list | show | apply`: the definitions of actions, over the HTTP API."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from common.action_definition import ActionDefinition, check_ref
from common.command_line import EXIT_FAILED, command_line
from common.domain.durations import format_duration
from executor.cli.action_file import read_action_file
from executor.cli.action_plan import Step, plan
from executor.cli.arguments import encode
from executor.cli.connection import Api, ApiRefused, ApiUnreachable, Json, with_api
from executor.cli.output import (
    JsonOption,
    compact,
    instant,
    print_fields,
    print_json,
    print_line,
    print_table,
    warn,
)
from executor.cli.pages import read_pages

app = command_line("Define actions and look at their definitions.")

_ALL: Final = 1_000_000
_HEADINGS: Final = ("ACTION", "RUNNER", "LIMIT", "KEY", "TIMEOUT", "TTL", "POOL", "PAUSED")
_SECONDS: Final = ("timeout", "ttl", "delay", "max_delay")
_SIGNS: Final = {"create": ("+", "green"), "change": ("~", "yellow"), "keep": ("=", "dim")}


def _checked_ref(text: str) -> str:
    try:
        return check_ref(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


RefArgument = Annotated[str, typer.Argument(metavar="REF", parser=_checked_ref, help="Like reports.render.")]


@app.command("list")
@with_api
def list_actions(api: Api, as_json: JsonOption = False) -> None:
    """List the actions by name."""
    items, _ = read_pages(api, "/actions", {}, limit=_ALL)
    if as_json:
        print_json({"items": items})
    else:
        print_table(
            _HEADINGS, map(_row, items), empty="no actions; apply a file, or start a worker with some"
        )


@app.command("show")
@with_api
def show_action(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show the whole definition of an action."""
    action = api.get(f"/actions/{ref}")
    if as_json:
        print_json(action)
    else:
        print_fields(_fields(action))


@app.command("apply")
@with_api
def apply_actions(
    api: Api,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Like actions.yaml; '-': stdin.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make actions what a file says.

    Fields that an entry leaves out get their defaults. Actions that are not in the file stay as they are.
    """
    wanted = read_action_file(file)
    items, _ = read_pages(api, "/actions", {}, limit=_ALL)
    refused: dict[str, str] = {}
    steps = plan(wanted, {item["ref"]: _definition(item) for item in items})
    for step in steps:
        if not (dry_run or step.kind == "keep"):
            try:
                api.put(f"/actions/{step.definition.ref}", encode(step.definition.model_dump(mode="json")))
            except ApiRefused as refusal:
                refused[step.definition.ref] = refusal.message
        if not as_json:
            _print_step(step)
    for ref, message in refused.items():
        warn(f"{ref}: {message}")
    if as_json:
        print_json(_report(steps, refused, dry_run=dry_run))
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _definition(action: Json) -> ActionDefinition:
    known = {name: action[name] for name in ActionDefinition.model_fields}
    try:
        return ActionDefinition.model_validate(known)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ApiUnreachable(
            f"the API shows action {action['ref']} in a way not known here: {reason}"
        ) from None


def _row(action: Json) -> Sequence[object]:
    limit = "none" if action["max_concurrent"] is None else action["max_concurrent"]
    durations = (_duration(action["timeout"]), _duration(action["ttl"]))
    paused = "paused" if action["paused"] else ""
    return (
        action["ref"],
        action["runner"],
        limit,
        action["concurrency_key"],
        *durations,
        action["pool"],
        paused,
    )


def _fields(action: Json) -> Iterator[tuple[str, object]]:
    for name in ActionDefinition.model_fields:
        if name == "retry":
            yield from ((f"retry.{part}", _shown(part, value)) for part, value in action["retry"].items())
        else:
            yield name, _shown(name, action[name])
    yield "created_at", instant(action["created_at"])
    yield "updated_at", instant(action["updated_at"])


def _print_step(step: Step) -> None:
    sign, style = _SIGNS[step.kind]
    changes = ", ".join(
        f"{field}: {_shown(field, new)}"
        if step.kind == "create"
        else f"{field}: {_shown(field, old)} -> {_shown(field, new)}"
        for field, (old, new) in step.changes.items()
    )
    print_line(f"{sign} {step.definition.ref}" + (f"  {changes}" if changes else ""), style=style)


def _report(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "actions": [
            {
                "ref": step.definition.ref,
                "step": step.kind,
                "changes": {field: {"old": old, "new": new} for field, (old, new) in step.changes.items()},
                "refused": refused.get(step.definition.ref),
            }
            for step in steps
        ],
    }


def _shown(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if field.removeprefix("retry.") in _SECONDS:
        return format_duration(value)
    return value if isinstance(value, str) else compact(value)


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)
