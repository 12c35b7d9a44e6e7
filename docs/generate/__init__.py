"""Writes the pages of the reference from the code, so that they cannot differ from it.

In: settings, commands, routes, definitions, signatures and messages, as the program itself has them. Out:
files that a reader of the repository finds in `docs/reference`: `make reference` writes them, and a test
compares them.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from generate.python import python_page
from generate.tables import default_of, fields_table, table
from generate.worker_messages import worker_messages_schema
from turnstile.cli import app as turnstile_app
from turnstile.cli import executor_app
from turnstile.common.action_definition import (
    ActionDefinition,
    RateDefinition,
    RetryDefinition,
    UseDefinition,
)
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import TRANSITIONS, Status, is_terminal
from turnstile.common.messages import ExecutionRequested
from turnstile.common.schedules import ScheduleDefinition
from turnstile.common.settings import CommonSettings
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition
from turnstile.executor.permissions.rights import BROKER, RIGHTS, Grant
from turnstile.executor.service import ExecutorService
from turnstile.executor.settings import ExecutorSettings
from turnstile.json_output import JSON_OUTPUT
from turnstile.stress.cli import app as stress_app
from turnstile.worker.cli import app as worker_app
from turnstile.worker.settings import WorkerSettings

_EXAMPLES = Path(__file__).parents[1] / "commands.jsonl"


def write_reference(folder: Path) -> None:
    """Write every page."""
    folder.mkdir(exist_ok=True)
    pages = {
        "accounts": accounts_page(),
        "actions": actions_page(),
        "commands": commands_page(),
        "http": http_page(),
        "pools": pools_page(),
        "python": python_page(),
        "request": request_page(),
        "resources": resources_page(),
        "schedules": schedules_page(),
        "settings": settings_page(),
        "states": states_page(),
    }
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / "worker-messages.schema.json").write_text(worker_messages_schema(), encoding="utf-8")


_ACCOUNTS = """# Rights of the accounts

What `executor setup-permissions` grants ([security](../security.md#an-account-for-each-service)). Patterns
are RabbitMQ's regular expressions, on the names of queues and exchanges in the vhost of the installation;
`^$` is nothing. Names of accounts begin with the prefix of the installation.

## RabbitMQ
"""
_TOPICS = """
With these routing keys, on these exchanges, an account may publish (write) and bind (read). Without a row any
key is allowed.
"""
_GRANTS = """
## PostgreSQL

Rights on all tables, sequences and functions of the schema `ledger` are for those of later versions too.
`turnstile_executor` is the group of the executor's account. `turnstile_submitter` has none: an operator
grants it to the accounts of applications.
"""


def accounts_page() -> str:
    """Return every right of every account, from the table that the command grants."""
    broker = [(f"`{service}`", *(f"`{each}`" for each in rights[:3])) for service, rights in BROKER.items()]
    topics = [
        (f"`{service}`", f"`{exchange}`", f"`{keys.write}`", f"`{keys.read}`")
        for service, rights in BROKER.items()
        for exchange, keys in rights.topics.items()
    ]
    grants = [
        (f"`{each.group}`", f"`{grant.on}`", ", ".join(grant.privileges) + _but(grant))
        for each in RIGHTS
        for grant in each.grants
    ]
    return "\n".join(
        [
            _ACCOUNTS,
            table(("account", "configure", "write", "read"), broker),
            _TOPICS,
            table(("account", "exchange", "write", "read"), topics),
            _GRANTS,
            table(("group", "on", "privileges"), grants),
        ]
    )


def _but(grant: Grant) -> str:
    named = ", ".join(f"`{each}`" for each in grant.but)
    return f"; on {named} only {', '.join(grant.kept)}" if named else ""


_ACTIONS = """# Fields of an action

The same in `@action(...)`, in `actions.yaml`, over HTTP and in the database.

```yaml
- ref: reports.render
  entrypoint: reports:render
  max_concurrent: 3
  timeout: 5m
  retry: {max_attempts: 3, delay: 2s}
```
"""


def actions_page() -> str:
    """Return every field of an action's definition."""
    return "\n".join(
        [
            _ACTIONS,
            fields_table(ActionDefinition),
            "\n## retry\n",
            fields_table(RetryDefinition),
            "\n## rate\n",
            fields_table(RateDefinition),
            "\n## uses\n",
            _USES,
            fields_table(UseDefinition),
            _KEYS,
            fields_table(KeySettings),
        ]
    )


_USES = """A list; the name of a resource alone means one unit of it. The resources must exist: a definition
that names an unknown one is refused, with the command that creates it.
"""
_KEYS = """
## keys

In `actions.yaml` and under `/actions/{ref}/keys/{key}`: what single concurrency keys have in place of the
action's settings.

```yaml
- ref: exports.build
  concurrency_key: /customer/id
  max_concurrent: 2
  keys: {"7": {max_concurrent: 5, weight: 2}}
```

A file without `keys:` leaves the settings of keys unchanged; with `keys:` all others are deleted. Omitted
fields have the value of the action; `max_concurrent: null` means no limit.
"""
_RESOURCES = """# Fields of a resource

What several actions share: licences, connections, machines. The same in `actions.yaml`, under
`/resources/{name}` and for `executor resources put`.

```yaml
resources:
  - {name: autocad, capacity: 10, rank: 1}
  - {name: partner-api, capacity: 5, rate: {starts: 100, per: 1m}, order: fair}
```
"""
_CHANGES = (
    (
        "capacity",
        "At once. Running executions keep their units. It may be lower than the units that an action takes: "
        "its executions wait, and `warnings` in the answer names the action.",
    ),
    ("paused", "Nothing that uses it starts. What waits for it returns to its queue and holds nothing."),
    ("rate", "At once. Starts of the past count."),
    (
        "rank",
        "At once. What waits returns to its queue and acquires in the new order. Two resources of one action "
        "must not have the same rank.",
    ),
    (
        "order",
        "Only while nothing waits for it; otherwise 409 `in_use`. Pause it, change the order, resume it.",
    ),
    (
        "deletion",
        "Only if no action uses it and no execution holds it or waits for it; otherwise 409 `in_use`, with "
        "the names of the actions.",
    ),
)
_RECORDED = (
    "\nEvery change is recorded: `executor resources history NAME`, `GET /resources/{name}/changes`.\n"
)


def resources_page() -> str:
    """Return every field of a resource's definition."""
    return "\n".join(
        [
            _RESOURCES,
            fields_table(ResourceDefinition),
            "\n## rate\n",
            fields_table(RateDefinition),
            "\n## Changes while it is in use\n",
            table(("change", "effect"), _CHANGES),
            _RECORDED,
        ]
    )


_POOLS = """# Settings of a pool

A pool is the set of workers that serve its actions. It exists as soon as an action names it; its capacity is
the concurrency of its live workers. The same settings in `actions.yaml`, under `/pools/{name}` and for
`executor pools set`.

```yaml
pools:
  - {name: default, weights: {reports.render: 3}}
  - {name: gpu, order: arrival}
```

With `--prune`, pools that a file with `pools:` does not name get the default settings.
"""
_POOL_CHANGES = (
    (
        "paused",
        "At once. Nothing in the pool starts. Running executions continue, waiting ones keep their position.",
    ),
    (
        "order",
        "At once, also while executions wait. With `fair` all actions begin with equal shares, whatever they "
        "started before.",
    ),
    (
        "weights",
        "From the next start of the action on. `PATCH` keeps the weights that it does not name; 1 is the "
        "default. `warnings` names actions that are not in the pool.",
    ),
)


_SCHEDULES = """# Settings of a schedule

When an action runs by itself. The same settings in `actions.yaml`, under `/schedules/{name}`, in `@schedule`
and for `executor schedules put`.

```yaml
schedules:
  - {name: nightly-report, action_ref: reports.render, cron: "0 6 * * MON-FRI", timezone: Europe/Berlin}
  - {name: mirror, action_ref: mirror.sync, every: 15m, overlap: skip}
```

[Run a report every night](../how-to/nightly-report.md) explains them. With `--prune`, schedules that a file
with `schedules:` does not name are deleted.
"""


def schedules_page() -> str:
    """Return every setting of a schedule."""
    changes = (
        "\nEvery change is recorded: `executor schedules history NAME`, `GET /schedules/{name}/changes`.\n"
    )
    return "\n".join([_SCHEDULES, fields_table(ScheduleDefinition), changes])


def pools_page() -> str:
    """Return every setting of a pool."""
    return "\n".join(
        [
            _POOLS,
            fields_table(PoolDefinition),
            "\n## Changes while it is in use\n",
            table(("change", "effect"), _POOL_CHANGES),
            "\nEvery change is recorded: `executor pools history NAME`, `GET /pools/{name}/changes`.\n",
        ]
    )


_COMMANDS = """# Commands

`executor`, `worker` and `turnstile`, each with `--help`. `turnstile executor` and `turnstile worker` are the
same as `executor` and `worker`. [Commands in scripts](../scripts.md) lists their exit codes.
"""
_WIDTH = 80
_APPS = {"executor": executor_app, "worker": worker_app, "turnstile stress": stress_app}


def commands_page() -> str:
    """Return the `--help` of every command."""
    parts = [_COMMANDS]
    for name, app in _APPS.items():
        parts += [f"\n## {name}\n", *_described(get_command(app), name)]
    umbrella: Any = get_command(turnstile_app)
    for name in ("dev", "worker-check", "healthcheck"):
        parts += [
            f"\n## turnstile {name}\n",
            *_described(umbrella.commands[name].load(), f"turnstile {name}"),
        ]
    return "\n".join(parts)


def _described(command: Any, path: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=_WIDTH)
    yield f"### {path}\n\n```\n{command.get_help(context).strip()}\n```\n"
    if path in JSON_OUTPUT:
        yield _with_json(path)
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            if inner.hidden:
                continue
            # Some commands are loaded only when they are called.
            yield from _described(getattr(inner, "load", lambda inner=inner: inner)(), f"{path} {name}")


def _with_json(path: str) -> str:
    """Return a line that a command has printed with `--json`."""
    lines = map(json.loads, _EXAMPLES.read_text(encoding="utf-8").splitlines())
    example = next(each for each in lines if each["command"] == path)
    return (
        f"With `--json` it prints {JSON_OUTPUT[path].sentence}, "
        f"as [its schema](../scripts.md#json) says:\n\n"
        f"```\n$ {example['called']}\n{json.dumps(example['prints'])}\n```\n"
    )


_HTTP = """# HTTP

Under `/api/v1`; `/actions/...` also without the prefix. JSON, snake_case, RFC 3339 times in UTC. Errors are
problem documents ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) whose `code` is one of
[these](states.md#codes-of-refusals) and whose `detail` names the field and the remedy. Lists are
`{items, next_cursor}`, with `?limit=&cursor=`. A running executor shows all of it at `/docs`,
and the document itself at `/openapi.json`. Any route may also answer 401 and 403 (a token lacks the role),
422 (something is wrong with the request) and 503 (a server is unreachable).
"""
_EVERYWHERE = {"401", "403", "422", "503"}
_METHODS = ("get", "post", "put", "patch", "delete")


def http_page() -> str:
    """Return every route of the HTTP API, from the same OpenAPI document that `/docs` shows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        document = ExecutorService(ExecutorSettings(), listener).application(asyncio.Event()).openapi()
    by_tag: dict[str, list[tuple[str, ...]]] = {}
    for path, operations in document["paths"].items():
        for tag, row in _routes(path, operations):
            by_tag.setdefault(tag, []).append(row)
    parts = [_HTTP]
    for tag, rows in by_tag.items():
        parts += [f"\n## {tag}\n", table(("route", "what it does", "parameters", "answers"), rows)]
    return "\n".join(parts)


def _routes(path: str, operations: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for method in _METHODS:
        if (operation := operations.get(method)) is None:
            continue
        parameters = ", ".join(
            f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] != "path"
        )
        answers = ", ".join(sorted(operation["responses"].keys() - _EVERYWHERE))
        tag = (operation.get("tags") or ["other"])[0]
        yield tag, (f"`{method.upper()} {path}`", operation.get("summary", ""), parameters, answers)


_REQUEST = """# Fields of a request

The body of the message `execution.requested`, of `POST /executions`, and of a line of
`executor submit --bulk`. An unknown field is refused. Durations are written `250ms`, `30s`, `5m`,
`1h30m`, or as a number of seconds.
"""


def request_page() -> str:
    """Return every field of a request, and its JSON Schema."""
    schema = json.dumps(ExecutionRequested.model_json_schema(), indent=2)
    return "\n".join(
        [_REQUEST, fields_table(ExecutionRequested), f"\n## JSON Schema\n\n```json\n{schema}\n```\n"]
    )


_SETTINGS = """# Settings

Environment variables; a command line option takes precedence over its variable. Durations are written
`250ms`, `30s`, `5m`, `1h30m`, or as a number of seconds. A wrong value ends the process with one line that
names the variable.
"""


def settings_page() -> str:
    """Return every environment variable of the two services."""
    parts = [_SETTINGS]
    common = set(CommonSettings.model_fields)
    for title, model, names in (
        ("Of both services", CommonSettings, common),
        ("Of the executor", ExecutorSettings, set(ExecutorSettings.model_fields) - common),
        ("Of the worker", WorkerSettings, set(WorkerSettings.model_fields) - common),
    ):
        rows = [
            (f"`TURNSTILE_{name.upper()}`", default_of(field), field.description or "")
            for name, field in model.model_fields.items()
            if name in names
        ]
        parts += [f"\n## {title}\n", table(("variable", "default", "meaning"), rows)]
    return "\n".join(parts)


def states_page() -> str:
    """Return states, transitions and codes, from the tables that the services use."""
    states = [
        (
            f"`{status}`",
            "yes" if is_terminal(status) else "",
            ", ".join(move.name for move in TRANSITIONS if status in move.sources),
        )
        for status in Status
    ]
    moves = [
        (move.name, ", ".join(f"`{source}`" for source in sorted(move.sources)), f"`{move.target}`")
        for move in TRANSITIONS
    ]
    return "\n".join(
        [
            "# States and codes\n\n## States\n",
            table(("status", "terminal", "transitions from it"), states),
            "\n## Transitions\n",
            table(("transition", "from", "to"), moves),
            "\n## Codes of refusals\n",
            "The same in `execution.rejected`, in problems and in the dead letters' `x-error-code`.\n",
            table(("code",), [(f"`{code}`",) for code in Code]),
        ]
    )
