"""Reads what commands print with `--json` by their documented schemas, and strictly: nothing may be missing
in a schema either.
"""

from functools import cache
from typing import Any

import jsonschema_rs
from typer.core import TyperGroup
from typer.main import get_command

from turnstile.cli import executor_app
from turnstile.json_output import schemas
from turnstile.stress.cli import app as stress_app
from turnstile.worker.cli import app as worker_app

_APPS = {"executor": executor_app, "worker": worker_app, "turnstile stress": stress_app}


def commands_with_json() -> set[str]:
    """Return the path of every command that has the option `--json`."""
    return {path for name, app in _APPS.items() for path in _with_json(get_command(app), name)}


def _with_json(command: Any, path: str) -> set[str]:
    # Some commands are loaded only when they are called.
    command = getattr(command, "load", lambda: command)()
    if isinstance(command, TyperGroup):
        inner = {name: each for name, each in command.commands.items() if not each.hidden}
        return {found for name, each in inner.items() for found in _with_json(each, f"{path} {name}")}
    return {path} if any("--json" in each.opts for each in command.params) else set()


def command_of(words: list[str], known: set[str]) -> str:
    """Return which command these words call."""
    paths = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    return next(path for path in paths if path in known)


def problem_of(command: str, document: object) -> str | None:
    """Return why the document is not what the schema of this command says, or None."""
    problem = next(iter(_validator(command).iter_errors(document)), None)
    return None if problem is None else f"{command}: {problem}"


@cache
def _validator(command: str) -> Any:
    whole = _closed(schemas())
    return jsonschema_rs.validator_for(
        {"$ref": f"#/$defs/{command.replace(' ', '%20')}", "$defs": whole["$defs"]}
    )


def _closed(schema: Any) -> Any:
    """Return the schema without objects that may have fields of other names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
