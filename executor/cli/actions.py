"""`executor actions ...`: definitions, limits, pause and resume, over the HTTP API."""

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.cli import EXIT_FAILED, command_line
from turnstile.common.domain.durations import format_duration
from turnstile.executor.cli.action_file import Step, plan, read_action_file, schema_text
from turnstile.executor.cli.arguments import RefArgument, RefsArgument, encode, is_interactive
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable, Json, with_api
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    compact,
    for_each,
    instant,
    print_fields,
    print_json,
    print_line,
    print_table,
    show,
    warn,
)
from turnstile.executor.cli.pagination import ALL, print_page, read_pages

_COLUMNS: Final[Columns] = {
    "ACTION": "ref",
    "RUNNER": "runner",
    "LIMIT": lambda action: shown("max_concurrent", action["max_concurrent"]),
    "KEY": "concurrency_key",
    "TIMEOUT": lambda action: "" if action["timeout"] is None else shown("timeout", action["timeout"]),
    "TTL": lambda action: "" if action["ttl"] is None else shown("ttl", action["ttl"]),
    "POOL": "pool",
    "PAUSED": lambda action: "paused" if action["paused"] else "",
}
_CHANGE_COLUMNS: Final[Columns] = {
    "CHANGED": lambda change: instant(change["changed_at"]),
    "BY": "changed_by",
    "CHANGE": "change",
    "FIELDS": lambda change: _changed_fields(change["old"], change["new"]),
}
_SIGNS: Final = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "keep": ("=", "dim"),
    "delete": ("-", "red"),
}
_DURATIONS: Final = ("timeout", "ttl", "keep_for", "delay", "max_delay")
_LIMIT_MAX: Final = 1_000_000
_NO_LIMIT: Final = -1

app = command_line("Manage actions: definitions, limits, pause and resume.")


class Waiting(StrEnum):
    """What `delete` does with executions that wait for the action."""

    ASK = "ask"
    CANCEL = "cancel"
    REFUSE = "refuse"


WaitingOption = Annotated[
    Waiting,
    typer.Option(
        metavar="ask|cancel|refuse",
        help="If executions wait for a deleted action: cancel them, or keep the action. 'ask' prompts on a "
        "terminal and is 'refuse' elsewhere.",
    ),
]


def parse_limit(text: str) -> int:
    """Return a concurrency limit; -1 for "none", because typer reads None as "not given"."""
    if text == "none":
        return _NO_LIMIT
    # Nine digits are enough to see that a number is too large; int() of thousands is slow.
    if text.isascii() and text.isdigit() and (limit := int(text.lstrip("0")[:9] or "0")) <= _LIMIT_MAX:
        return limit
    raise typer.BadParameter(
        f"invalid limit {text[:40]!r}; expected a number from 0 to {_LIMIT_MAX}, like 4, or 'none'"
    )


@app.command("list")
@with_api
def list_actions(api: Api, as_json: JsonOption = False) -> None:
    """List actions by ref."""
    items, _ = read_pages(api, "/actions", {}, limit=ALL)
    if as_json:
        print_json({"items": items})
    else:
        print_table(
            _COLUMNS,
            items,
            empty="No actions; create some with 'executor actions apply FILE' or 'worker serve --actions "
            "MODULE'",
        )


@app.command("show")
@with_api
def show_action(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show the definition of an action."""
    show(api.get(f"/actions/{ref}"), lambda action: print_fields(_fields(action)), as_json=as_json)


@app.command("apply")
@with_api
def apply_actions(
    api: Api,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML or JSON file, like actions.yaml; '-': stdin.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; change nothing.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete actions that are not in the file.")] = False,
    waiting: WaitingOption = Waiting.ASK,
    as_json: JsonOption = False,
) -> None:
    """Create and change actions so that they match a file.

    Omitted fields get their defaults. Actions that are not in the file are kept, unless --prune is given.
    Signs in the output: + created, ~ changed, = unchanged, - deleted.
    """
    wanted = read_action_file(file)
    items, _ = read_pages(api, "/actions", {}, limit=ALL)
    refused: dict[str, str] = {}
    steps = plan(wanted, {item["ref"]: _definition(item) for item in items}, prune=prune)
    for number, step in enumerate(steps):
        if not (dry_run or step.kind == "keep"):
            try:
                _apply(api, step, waiting)
            except ApiRefused as refusal:
                refused[step.definition.ref] = refusal.message
            except ApiUnreachable as error:
                _print_result(steps[:number], refused, dry_run=dry_run, as_json=as_json)
                raise ApiUnreachable(
                    f"{error.message}\n{step.definition.ref}: unknown whether it was changed; earlier "
                    "entries were applied, later entries were not; the file can be applied again"
                ) from None
        if not as_json:
            _print_step(step)
    _print_result(steps, refused, dry_run=dry_run, as_json=as_json)
    if refused:
        raise typer.Exit(EXIT_FAILED)


@app.command("pause")
@with_api
def pause_actions(api: Api, refs: RefsArgument, as_json: JsonOption = False) -> None:
    """Pause actions: new executions wait in the queue, running ones continue."""
    for_each(refs, lambda ref: api.post(f"/actions/{ref}/pause"), _state, as_json=as_json)


@app.command("resume")
@with_api
def resume_actions(api: Api, refs: RefsArgument, as_json: JsonOption = False) -> None:
    """Resume paused actions."""
    for_each(refs, lambda ref: api.post(f"/actions/{ref}/resume"), _state, as_json=as_json)


@app.command("limit")
@with_api
def limit_action(
    api: Api,
    ref: RefArgument,
    max_concurrent: Annotated[
        int,
        typer.Argument(
            metavar="NUMBER|none",
            parser=parse_limit,
            help="Maximum concurrent executions per queue; 0: nothing starts; none: no limit.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Change the concurrency limit of an action, with immediate effect.

    Running executions above a lowered limit continue. Example: executor actions limit reports.render 4
    """
    body = encode({"max_concurrent": None if max_concurrent == _NO_LIMIT else max_concurrent})
    for_each([ref], lambda name: api.patch(f"/actions/{name}", body), _state, as_json=as_json)


@app.command("delete")
@with_api
def delete_actions(
    api: Api, refs: RefsArgument, waiting: WaitingOption = Waiting.ASK, as_json: JsonOption = False
) -> None:
    """Delete actions; their executions are kept in the history.

    An action is not deleted while one of its executions runs. Example: executor actions delete reports.render
    --waiting cancel
    """
    for_each(refs, lambda ref: delete(api, ref, waiting), _deleted, as_json=as_json)


@app.command("changes")
@with_api
def list_changes(
    api: Api,
    ref: RefArgument,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of changes.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the changes of an action: what, when and by whom, newest first."""
    found = read_pages(api, f"/actions/{ref}/changes", {}, limit=limit)
    print_page(
        found,
        _CHANGE_COLUMNS,
        empty="No changes recorded",
        limit=limit,
        as_json=as_json,
        shows_cursor=False,
    )


def delete(api: Api, ref: str, waiting: Waiting) -> Json:
    """Delete one action; raises ApiRefused if it is kept."""
    first = Waiting.CANCEL if waiting is Waiting.CANCEL else Waiting.REFUSE
    try:
        return api.delete(f"/actions/{ref}", {"waiting": first})
    except ApiRefused as refusal:
        count, running = refusal.problem.get("waiting"), refusal.problem.get("running")
        if waiting is Waiting.REFUSE or running or not count:
            raise
        if waiting is Waiting.ASK and is_interactive() and sys.stderr.isatty():
            if not typer.confirm(f"{count} executions wait for {ref}; cancel them and delete it?", err=True):
                raise
            return api.delete(f"/actions/{ref}", {"waiting": Waiting.CANCEL})
        detail = f"{count} executions wait for it; to cancel them, add --waiting cancel"
        raise ApiRefused({**refusal.problem, "detail": detail}) from None


def shown(field: str, value: Any) -> str:
    """Return the value of a field of an action as it is written in a file."""
    if value is None:
        return "none"
    if field.removeprefix("retry.") in _DURATIONS:
        return format_duration(value)
    return value if isinstance(value, str) else compact(value)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of actions.yaml.

    Example: executor actions schema > actions.schema.json
    """
    typer.echo(schema_text(), nl=False)


def _apply(api: Api, step: Step, waiting: Waiting) -> None:
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
            f"the API returns a definition of {action['ref']} that this version does not accept: {reason}"
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


def _print_result(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    for ref, message in refused.items():
        warn(f"{ref}: {message}")
    if as_json:
        actions = [
            {
                "ref": step.definition.ref,
                "step": step.kind,
                "changes": {field: {"old": old, "new": new} for field, (old, new) in step.changes.items()},
                "refused": refused.get(step.definition.ref),
            }
            for step in steps
        ]
        print_json({"dry_run": dry_run, "actions": actions})


def _state(ref: str, action: Json) -> str:
    paused = "paused" if action["paused"] else "not paused"
    return f"{ref}: limit {shown('max_concurrent', action['max_concurrent'])}, {paused}"


def _deleted(ref: str, result: Json) -> str:
    cancelled = result["cancelled"]
    plural = "execution" if cancelled == 1 else "executions"
    return f"Deleted {ref}" + (f"; cancelled {cancelled} waiting {plural}" if cancelled else "")


def _fields(action: Json) -> Iterator[tuple[str, object]]:
    for name in ActionDefinition.model_fields:
        if name == "retry":
            yield from ((f"retry.{part}", shown(part, value)) for part, value in action["retry"].items())
        else:
            yield name, shown(name, action[name])
    yield "created_at", instant(action["created_at"])
    yield "updated_at", instant(action["updated_at"])


def _changed_fields(old: Json, new: Json) -> str:
    return ", ".join(
        f"{field}: {_value(field, old)} -> {_value(field, new)}" for field in sorted(old.keys() | new.keys())
    )


def _value(field: str, values: Json) -> str:
    if field not in values:
        return "-"
    value = values[field]
    return shown(field, value) if not isinstance(value, dict) else compact(value)
