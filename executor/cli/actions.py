"""`executor actions ...`: definitions, limits, pause and resume, over the HTTP API."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar, assert_never

import typer
from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.cli import command_line
from turnstile.common.exit_codes import ExitCode
from turnstile.common.invalid_values import explained
from turnstile.executor.cli.action_file import (
    DefinitionFile,
    Step,
    check_uses,
    plan,
    plan_pools,
    plan_resources,
    read_action_file,
    schema_text,
)
from turnstile.executor.cli.arguments import (
    RefArgument,
    RefsArgument,
    encode,
    limit_or_none,
    parse_limit,
)
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable, Json, with_api
from turnstile.executor.cli.confirmation import (
    DryRunOption,
    YesOption,
    can_prompt,
    confirm,
    confirm_named,
    listed,
)
from turnstile.executor.cli.documents import (
    ActionDeletionPlan,
    AppliedAction,
    AppliedFile,
    AppliedGate,
    FieldChange,
)
from turnstile.executor.cli.keys import app as keys_app
from turnstile.executor.cli.keys import change_key, stored_settings
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    counted,
    for_each,
    instant,
    print_fields,
    print_json,
    print_line,
    show,
    warn,
)
from turnstile.executor.cli.pagination import change_matching, print_all, read_all
from turnstile.executor.cli.values import ChangesOption, print_changes, shown
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition

Definition = TypeVar("Definition", ActionDefinition, ResourceDefinition, PoolDefinition)

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
_SIGNS: Final = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "keep": ("=", "dim"),
    "delete": ("-", "red"),
}

_SCHEMA_FIELDS: Final = frozenset({"parameters_schema", "result_schema"})

app = command_line("Manage actions: definitions, limits, pause and resume.")
app.add_typer(keys_app, name="keys")


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
        "terminal; elsewhere, and with --yes, it is 'refuse'.",
    ),
]


@app.command("list")
@with_api
def list_actions(api: Api, as_json: JsonOption = False) -> None:
    """List actions by ref."""
    print_all(
        api,
        "/actions",
        _COLUMNS,
        empty="No actions; create some with 'executor actions apply FILE' or 'worker serve --actions MODULE'",
        as_json=as_json,
    )


@app.command("show")
@with_api
def show_action(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Show the definition of an action, and what parameters it takes."""
    show(api.get(f"/actions/{ref}"), _print_action, as_json=as_json)


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
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete actions that are not in the file. With 'resources:' in the file, also delete "
            "resources that are not in it; with 'keys:' of an action, also the settings of its other keys; "
            "with 'pools:', give all other pools the default settings. A terminal prompts for "
            "confirmation; without a terminal, deletions need --yes.",
        ),
    ] = False,
    waiting: WaitingOption = Waiting.ASK,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create and change actions, resources and pools so that they match a file.

    Omitted fields get their defaults. Actions, resources, pools and settings of concurrency keys that are
    not in the file are kept, unless --prune is given. Signs in the output: + created, ~ changed,
    = unchanged, - deleted.
    """
    wanted = read_action_file(file)
    steps = _steps(api, wanted, prune=prune)
    deleted = [subject for step in steps for subject in step.deleted_subjects]
    if deleted and not dry_run:
        confirm(
            lambda: f"Apply the file, and delete {len(deleted)} that it omits: {listed(deleted)}?",
            yes=yes,
            destroys=f"--prune deletes what the file omits ({listed(deleted)})",
        )
    refused: dict[str, str] = {}
    for number, step in enumerate(steps):
        if not (dry_run or step.kind == "keep"):
            try:
                _apply(api, step, waiting, prompts=not yes)
            except ApiRefused as refusal:
                refused[step.subject] = refusal.message
            except ApiUnreachable as error:
                _print_result(steps[:number], refused, dry_run=dry_run, as_json=as_json)
                raise ApiUnreachable(
                    f"{error.message}\n{step.subject}: unknown whether it was changed; earlier "
                    "entries were applied, later entries were not; the file can be applied again"
                ) from None
        if not as_json:
            _print_step(step)
    _print_result(steps, refused, dry_run=dry_run, as_json=as_json)
    if refused:
        raise typer.Exit(ExitCode.FAILED)


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
    body = encode({"max_concurrent": limit_or_none(max_concurrent)})
    for_each([ref], lambda name: api.patch(f"/actions/{name}", body), _state, as_json=as_json)


@app.command("delete")
@with_api
def delete_actions(
    api: Api,
    refs: RefsArgument,
    *,
    waiting: WaitingOption = Waiting.ASK,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete actions; their executions are kept in the history.

    An action is not deleted while one of its executions runs. A terminal prompts for confirmation; without
    one, --yes is needed. Example: executor actions delete reports.render --waiting cancel --yes
    """
    if dry_run:
        for_each(
            refs,
            lambda ref: _unfinished(api, ref),
            lambda ref, found: _deletion_plan(ref, found, waiting),
            as_json=as_json,
        )
        return
    confirm_named(lambda: refs, asks="Delete the actions", destroys="a delete removes definitions", yes=yes)
    for_each(refs, lambda ref: _delete(api, ref, waiting, prompts=not yes), _deleted, as_json=as_json)


@app.command("changes")
@with_api
def list_changes(
    api: Api,
    ref: RefArgument,
    limit: ChangesOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the changes of an action: what, when and by whom, newest first."""
    print_changes(api, f"/actions/{ref}/changes", limit, as_json=as_json)


def _delete(api: Api, ref: str, waiting: Waiting, *, prompts: bool) -> Json:
    """Delete one action; raises ApiRefused if it is kept."""
    first = Waiting.CANCEL if waiting is Waiting.CANCEL else Waiting.REFUSE
    try:
        return api.delete(f"/actions/{ref}", {"waiting": first})
    except ApiRefused as refusal:
        count, running = refusal.problem.get("waiting"), refusal.problem.get("running")
        if waiting is Waiting.REFUSE or running or not count:
            raise
        if waiting is Waiting.ASK and prompts and can_prompt():
            if not typer.confirm(f"{count} executions wait for {ref}; cancel them and delete it?", err=True):
                raise
            return api.delete(f"/actions/{ref}", {"waiting": Waiting.CANCEL})
        detail = f"{count} executions wait for it; to cancel them, add --waiting cancel"
        raise ApiRefused({**refusal.problem, "detail": detail}) from None


def _unfinished(api: Api, ref: str) -> ActionDeletionPlan:
    """Return how many executions of an action run, and how many wait."""
    api.get(f"/actions/{ref}")
    counts: Counter[str] = Counter()
    planned = {"filter": {"action_ref": ref}, "dry_run": True}
    for page in change_matching(api, "cancel", planned, key=None, limit=None, on_matched=lambda _: None):
        counts.update(item["status"] for item in page["items"])
    running = counts.pop("running", 0)
    return ActionDeletionPlan(action_ref=ref, running=running, waiting=counts.total())


def _deletion_plan(ref: str, found: ActionDeletionPlan, waiting: Waiting) -> str:
    if found.running:
        return f"Would keep {ref}: {counted(found.running, 'execution')} of it running"
    if not found.waiting:
        return f"Would delete {ref}"
    waits = f"{counted(found.waiting, 'execution')} waiting for it"
    if waiting is Waiting.CANCEL:
        return f"Would delete {ref}, and cancel {waits}"
    return f"Would keep {ref}: {waits}; to cancel them, add --waiting cancel"


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of actions.yaml.

    Example: executor actions schema > actions.schema.json
    """
    typer.echo(schema_text(), nl=False)


def _steps(api: Api, wanted: DefinitionFile, *, prune: bool) -> list[Step]:
    """Return all steps in the order of their application: an action needs the resources that it uses."""
    items = read_all(api, "/actions")
    actions = {item["ref"]: _read(ActionDefinition, item, f"action {item['ref']}") for item in items}
    resources: dict[str, ResourceDefinition] = {}
    if wanted.resources is not None or any(entry.uses for entry in wanted.actions):
        items = read_all(api, "/resources")
        resources = {
            item["name"]: _read(ResourceDefinition, item, f"resource {item['name']}") for item in items
        }
    check_uses(wanted, actions, resources)
    pools: dict[str, PoolDefinition] = {}
    if wanted.pools is not None:
        items = read_all(api, "/pools")
        pools = {item["name"]: _read(PoolDefinition, item, f"pool {item['name']}") for item in items}
    keys = {
        entry.ref: _stored_keys(api, entry.ref)
        for entry in wanted.actions
        if entry.keys is not None and entry.ref in actions
    }
    of_resources = plan_resources(wanted.resources, resources, prune=prune)
    return [
        *(step for step in of_resources if step.kind != "delete"),
        *plan_pools(wanted.pools, pools, prune=prune),
        *plan(wanted.actions, actions, keys=keys, prune=prune),
        *(step for step in of_resources if step.kind == "delete"),
    ]


def _read(model: type[Definition], item: Json, what: str) -> Definition:
    try:
        return model.model_validate({name: item[name] for name in model.model_fields if name in item})
    except ValidationError as error:
        raise ApiUnreachable(
            f"the API returns a definition of the {what} that this version does not accept: "
            f"{explained(error, whole='definition')}"
        ) from None


def _stored_keys(api: Api, ref: str) -> dict[str, KeySettings]:
    items = read_all(api, f"/actions/{ref}/keys")
    return {item["concurrency_key"]: stored_settings(item) for item in items}


def _apply(api: Api, step: Step, waiting: Waiting, *, prompts: bool) -> None:
    match step.definition:
        case ResourceDefinition() as resource if step.kind == "delete":
            api.delete(f"/resources/{resource.name}", {})
        case ResourceDefinition() as resource:
            api.put(f"/resources/{resource.name}", encode(resource.model_dump(mode="json")))
        case PoolDefinition() as pool:
            api.put(f"/pools/{pool.name}", encode(pool.model_dump(mode="json")))
        case ActionDefinition() as action if step.kind == "delete":
            _delete(api, action.ref, waiting, prompts=prompts)
        case ActionDefinition() as action:
            if step.kind == "create" or step.changes_definition:
                fields = action.model_dump(mode="json", exclude={"keys"})
                api.put(f"/actions/{action.ref}", encode(fields))
            for key, settings in step.keys.items():
                change_key(api, action.ref, key, settings)
        case _:
            assert_never(step.definition)


def _print_step(step: Step) -> None:
    sign, style = _SIGNS[step.kind]
    changes = ", ".join(
        f"{field}: {shown(field, new)}"
        if step.kind == "create"
        else f"{field}: {shown(field, old)} -> {shown(field, new)}"
        for field, (old, new) in step.changes.items()
    )
    print_line(f"{sign} {step.subject}" + (f"  {changes}" if changes else ""), style=style)
    if step.kept_keys:
        warn(f"{step.subject}: keeps the settings of the keys {listed(step.kept_keys)}; --prune deletes them")


def _print_result(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    for subject, message in refused.items():
        warn(f"{subject}: {message}")
    if as_json:
        print_json(_applied(steps, refused, dry_run=dry_run))


def _applied(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool) -> AppliedFile:
    resources: list[AppliedGate] = []
    pools: list[AppliedGate] = []
    actions: list[AppliedAction] = []
    for step in steps:
        changes = {field: FieldChange(old=old, new=new) for field, (old, new) in step.changes.items()}
        why = refused.get(step.subject)
        match step.definition:
            case ActionDefinition():
                actions.append(
                    AppliedAction(
                        ref=step.name, step=step.kind, changes=changes, refused=why, kept_keys=step.kept_keys
                    )
                )
            case ResourceDefinition():
                resources.append(AppliedGate(name=step.name, step=step.kind, changes=changes, refused=why))
            case PoolDefinition():
                pools.append(AppliedGate(name=step.name, step=step.kind, changes=changes, refused=why))
            case _:
                assert_never(step.definition)
    return AppliedFile(dry_run=dry_run, resources=resources, pools=pools, actions=actions)


def _print_action(action: Json) -> None:
    print_fields(_fields(action))
    for title, schema in _schemas(action):
        print_line(f"\n{title}:", style="bold")
        # What the parts refer to comes last.
        in_order = {name: value for name, value in schema.items() if name != "$defs"} | schema
        print_line(json.dumps(in_order, indent=2, ensure_ascii=False))


def _schemas(action: Json) -> Iterator[tuple[str, Json]]:
    """Yield the schemas of an action with their titles; an older executor returns none of the code."""
    derived = action.get("code_schemas", ())
    for kind in ("parameters", "result"):
        field = f"{kind}_schema"
        if action.get(field) is not None:
            yield f"{kind} (JSON Schema of the definition)", action[field]
            continue
        schemas: list[Json] = []
        for each in derived:
            if each[field] is not None and each[field] not in schemas:
                schemas.append(each[field])
        for number, schema in enumerate(schemas, start=1):
            which = "" if len(schemas) == 1 else f", version {number} of {len(schemas)}"
            yield f"{kind} (JSON Schema of the code{which})", schema


def _state(ref: str, action: Json) -> str:
    paused = "paused" if action["paused"] else "not paused"
    return f"{ref}: limit {shown('max_concurrent', action['max_concurrent'])}, {paused}"


def _deleted(ref: str, result: Json) -> str:
    cancelled = result["cancelled"]
    return f"Deleted {ref}" + (f"; cancelled {counted(cancelled, 'waiting execution')}" if cancelled else "")


def _fields(action: Json) -> Iterator[tuple[str, object]]:
    for name in ActionDefinition.model_fields:
        if name == "retry":
            yield from (
                (f"retry.{part}", shown(f"retry.{part}", value)) for part, value in action["retry"].items()
            )
        elif name not in _SCHEMA_FIELDS:
            yield name, shown(name, action[name])
    yield "parameters_checked_by", action.get("parameters_checked_by")
    yield "created_at", instant(action["created_at"])
    yield "updated_at", instant(action["updated_at"])
