"""`executor actions apply`: makes actions what a file says, and shows what that changes.

In: a file. Out: one line for each action. Nothing is deleted unless it is asked for (`--prune`), and what
executions wait for is then decided as in `executor actions delete`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.command_line import EXIT_FAILED
from turnstile.executor.cli.action_delete import Waiting, WaitingOption, delete
from turnstile.executor.cli.action_file import read_action_file
from turnstile.executor.cli.action_plan import Step, plan
from turnstile.executor.cli.action_values import shown
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.connection import Api, ApiRefused, ApiUnreachable, Json, with_api
from turnstile.executor.cli.output import JsonOption, print_json, print_line, warn
from turnstile.executor.cli.pages import read_pages

_ALL: Final = 1_000_000
_SIGNS: Final = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "keep": ("=", "dim"),
    "delete": ("-", "red"),
}


@with_api
def apply_actions(
    api: Api,
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Like actions.yaml; '-': stdin.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, change nothing.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the actions that are not in the file.")
    ] = False,
    waiting: WaitingOption = Waiting.ASK,
    as_json: JsonOption = False,
) -> None:
    """Make actions what a file says.

    Fields that an entry leaves out get their defaults. Actions that are not in the file stay as they are,
    unless --prune is given. A sign tells what becomes of each: + new, ~ changed, = as it was, - deleted.
    """
    wanted = read_action_file(file)
    items, _ = read_pages(api, "/actions", {}, limit=_ALL)
    refused: dict[str, str] = {}
    steps = plan(wanted, {item["ref"]: _definition(item) for item in items}, prune=prune)
    for number, step in enumerate(steps):
        if not (dry_run or step.kind == "keep"):
            try:
                _carry_out(api, step, waiting)
            except ApiRefused as refusal:
                refused[step.definition.ref] = refusal.message
            except ApiUnreachable as error:
                _print_end(steps[:number], refused, dry_run=dry_run, as_json=as_json)
                raise ApiUnreachable(
                    f"{error.message}\n{step.definition.ref}: unknown whether it was changed; what comes "
                    "before it was done, what comes behind it was not begun; the file can be applied again"
                ) from None
        if not as_json:
            _print_step(step)
    _print_end(steps, refused, dry_run=dry_run, as_json=as_json)
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _carry_out(api: Api, step: Step, waiting: Waiting) -> None:
    if step.kind == "delete":
        delete(api, step.definition.ref, waiting)
    else:
        api.put(f"/actions/{step.definition.ref}", encode(step.definition.model_dump(mode="json")))


def _definition(action: Json) -> ActionDefinition:
    known = {name: action[name] for name in ActionDefinition.model_fields}
    try:
        return ActionDefinition.model_validate(known)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ApiUnreachable(
            f"the API shows action {action['ref']} in a way not known here: {reason}"
        ) from None


def _print_step(step: Step) -> None:
    sign, style = _SIGNS[step.kind]
    changes = ", ".join(
        f"{field}: {shown(field, new)}"
        if step.kind == "create"
        else f"{field}: {shown(field, old)} -> {shown(field, new)}"
        for field, (old, new) in step.changes.items()
    )
    print_line(f"{sign} {step.definition.ref}" + (f"  {changes}" if changes else ""), style=style)


def _print_end(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    for ref, message in refused.items():
        warn(f"{ref}: {message}")
    if as_json:
        print_json(_report(steps, refused, dry_run=dry_run))


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
