"""`executor actions …`: the definitions of actions, over the HTTP API."""

from collections.abc import Iterator, Sequence
from typing import Final

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.command_line import command_line
from turnstile.executor.cli.action_apply import apply_actions
from turnstile.executor.cli.action_changes import limit_action, list_changes, pause_actions, resume_actions
from turnstile.executor.cli.action_delete import delete_actions
from turnstile.executor.cli.action_schema import print_schema
from turnstile.executor.cli.action_values import shown
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.output import JsonOption, instant, print_fields, print_json, print_table
from turnstile.executor.cli.pages import read_pages
from turnstile.executor.cli.refs import RefArgument

app = command_line("Define actions and look at their definitions.")

_ALL: Final = 1_000_000
_HEADINGS: Final = ("ACTION", "RUNNER", "LIMIT", "KEY", "TIMEOUT", "TTL", "POOL", "PAUSED")


@app.callback()
def group() -> None:
    """Define actions and look at their definitions."""


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


app.command("apply")(apply_actions)
app.command("pause")(pause_actions)
app.command("resume")(resume_actions)
app.command("limit")(limit_action)
app.command("delete")(delete_actions)
app.command("changes")(list_changes)
app.command("schema")(print_schema)


def _row(action: Json) -> Sequence[object]:
    return (
        action["ref"],
        action["runner"],
        shown("max_concurrent", action["max_concurrent"]),
        action["concurrency_key"],
        "" if action["timeout"] is None else shown("timeout", action["timeout"]),
        "" if action["ttl"] is None else shown("ttl", action["ttl"]),
        action["pool"],
        "paused" if action["paused"] else "",
    )


def _fields(action: Json) -> Iterator[tuple[str, object]]:
    for name in ActionDefinition.model_fields:
        if name == "retry":
            yield from ((f"retry.{part}", shown(part, value)) for part, value in action["retry"].items())
        else:
            yield name, shown(name, action[name])
    yield "created_at", instant(action["created_at"])
    yield "updated_at", instant(action["updated_at"])
