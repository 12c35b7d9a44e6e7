"""`executor actions ...`: definitions, limits, pause and resume, over the HTTP API."""

import json
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import typer

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.cli import command_line
from turnstile.executor.cli.action_file import schema_text
from turnstile.executor.cli.apply import apply_file
from turnstile.executor.cli.arguments import LIMIT, REF_ARGUMENT, RefArgument, argument, encode, given, option
from turnstile.executor.cli.cancel_retry import change_matching
from turnstile.executor.cli.client import Api, ApiRefused, Json, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, can_prompt, change_named
from turnstile.executor.cli.definition_commands import Definitions, dates, paused_cell
from turnstile.executor.cli.documents import ActionDeletionPlan
from turnstile.executor.cli.keys import app as keys_app
from turnstile.executor.cli.output import (
    Columns,
    JsonOption,
    counted,
    for_each,
    instant,
    print_fields,
    print_line,
    print_table,
    show,
    shown,
)

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
    option(
        "ask|cancel|refuse",
        "If executions wait for a deleted action: cancel them, or keep the action. 'ask' prompts on a "
        "terminal; elsewhere, and with --yes, it is 'refuse'.",
    ),
]


def _state(action: Json) -> str:
    return f"limit {shown('max_concurrent', action['max_concurrent'])}"


_ACTIONS: Final = Definitions(app=app, noun="action", name=REF_ARGUMENT, state=_state)


def _print_action(action: Json) -> None:
    print_fields(_fields(action))
    for title, schema in _schemas(action):
        print_line(f"\n{title}:", style="bold")
        # What the parts refer to comes last.
        in_order = {name: value for name, value in schema.items() if name != "$defs"} | schema
        print_line(json.dumps(in_order, indent=2, ensure_ascii=False))


def _fields(action: Json) -> Iterator[tuple[str, object]]:
    for name in ActionDefinition.model_fields:
        if name == "retry":
            yield from (
                (f"retry.{part}", shown(f"retry.{part}", value)) for part, value in action["retry"].items()
            )
        elif name not in _SCHEMA_FIELDS:
            yield name, shown(name, action[name])
    yield "parameters_checked_by", action["parameters_checked_by"]
    yield from dates(action)


def _schemas(action: Json) -> Iterator[tuple[str, Json]]:
    """Yield the schemas of an action with their titles."""
    for kind in ("parameters", "result"):
        field = f"{kind}_schema"
        if action[field] is not None:
            yield f"{kind} (JSON Schema of the definition)", action[field]
            continue
        schemas: list[Json] = []
        for each in action["code_schemas"]:
            if each[field] is not None and each[field] not in schemas:
                schemas.append(each[field])
        for number, schema in enumerate(schemas, start=1):
            which = "" if len(schemas) == 1 else f", version {number} of {len(schemas)}"
            yield f"{kind} (JSON Schema of the code{which})", schema


_ACTIONS.add_list(
    "List actions by ref.",
    empty="No actions; create some with 'executor actions apply FILE' or 'worker serve --actions MODULE'",
    columns={
        "ACTION": "ref",
        "RUNNER": "runner",
        "LIMIT": lambda action: shown("max_concurrent", action["max_concurrent"]),
        "KEY": "concurrency_key",
        "TIMEOUT": lambda action: "" if action["timeout"] is None else shown("timeout", action["timeout"]),
        "TTL": lambda action: "" if action["ttl"] is None else shown("ttl", action["ttl"]),
        "POOL": "pool",
        "PAUSED": paused_cell,
    },
)
_ACTIONS.add_show("show", "Show the definition of an action, and what parameters it takes.", _print_action)
_FAILURES: Final[Columns] = {
    "COUNT": "count",
    "STATUS": "status",
    "LAST": "last_id",
    "AT": lambda group: instant(group["last_at"]),
    "ERROR": lambda group: ": ".join(filter(None, (group["type"], group["message"]))),
}


@app.command("failures")
@with_api
def list_failures(api: Api, ref: RefArgument, as_json: JsonOption = False) -> None:
    """Group the failures among the newest executions of an action by their error.

    Texts in quotes and words with digits count as equal: … stands for them.
    """
    show(api.get(f"/actions/{ref}/failures"), _print_failures, as_json=as_json)


def _print_failures(found: Json) -> None:
    none = f"No failures among the {counted(found['examined'], 'newest execution')}"
    print_table(_FAILURES, found["items"], empty=none)


@app.command("apply")
@with_api
def apply_actions(
    api: Api,
    *,
    file: Annotated[str, argument("FILE", "YAML or JSON file, like actions.yaml; '-': stdin.")],
    dry_run: DryRunOption = False,
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

    def delete(ref: str) -> None:
        _delete(api, ref, waiting, prompts=not yes)

    apply_file(api, file, delete, dry_run=dry_run, prune=prune, yes=yes, as_json=as_json)


_ACTIONS.add_switch("pause", "Pause actions: new executions wait in the queue, running ones continue.")
_ACTIONS.add_switch("resume", "Resume paused actions.")


@app.command("limit")
@with_api
def limit_action(
    api: Api,
    ref: RefArgument,
    max_concurrent: Annotated[
        int, argument(LIMIT, "Maximum concurrent executions per queue; 0: nothing starts; none: no limit.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Change the concurrency limit of an action, with immediate effect.

    Running executions above a lowered limit continue. Example: executor actions limit reports.render 4
    """
    body = encode(given(max_concurrent=max_concurrent))
    for_each([ref], lambda name: api.patch(f"/actions/{name}", body), _ACTIONS.changed, as_json=as_json)


@app.command("delete")
@with_api
def delete_actions(
    api: Api,
    refs: Annotated[list[str], REF_ARGUMENT],
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
    change_named(
        refs,
        read=lambda ref: _unfinished(api, ref),
        plan=lambda ref, found: _deletion_plan(ref, found, waiting),
        asks="Delete the actions",
        destroys="a delete removes definitions",
        change=lambda ref: _delete(api, ref, waiting, prompts=not yes),
        changed=_deleted,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


_ACTIONS.add_changes("changes", "List the changes of an action: what, when and by whom, newest first.")


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


def _deleted(ref: str, result: Json) -> str:
    cancelled = result["cancelled"]
    return f"Deleted {ref}" + (f"; cancelled {counted(cancelled, 'waiting execution')}" if cancelled else "")


def _unfinished(api: Api, ref: str) -> ActionDeletionPlan:
    """Return how many executions of an action run, and how many wait."""
    api.get(f"/actions/{ref}")
    counts: Counter[str] = Counter()
    planned = {"filter": {"action_ref": ref}, "dry_run": True}
    for page in change_matching(api, "cancel", planned, key=None, limit=None):
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
