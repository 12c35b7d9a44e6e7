"""The command line `worker`.

In: the modules that declare actions, and settings from the environment. Out: a running service, or a list of
the declared actions. Exit codes are those of `executor`.
"""

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from turnstile.common.cli import (
    CommandFailed,
    VersionOption,
    bad_input,
    command_line,
    print_json,
    run_command_line,
    with_options,
)
from turnstile.common.domain.durations import format_duration
from turnstile.common.known_settings import warn_of_unknown_settings
from turnstile.common.settings import read_settings
from turnstile.common.telemetry.logs import configure_logging
from turnstile.worker import actions as actions_module
from turnstile.worker.actions import ActionsNotFound, RegisteredAction, load_actions
from turnstile.worker.parameters import ActionDeclarationError
from turnstile.worker.settings import WorkerSettings
from turnstile.worker.start_notes import WarningRecorder

_SUMMARY: Final = (
    "Run workers: take the executions that the leader offers, run their actions, report the outcomes."
)
app = command_line(_SUMMARY)

_PIPED_WIDTH: Final = 10_000

Targets = Annotated[
    list[str],
    typer.Option(
        "--actions",
        metavar="MODULE[:NAME]",
        help="Module that declares actions, or one action of it. Repeat it for several modules. "
        "Modules in the current folder can be imported. Example: --actions reports.actions",
    ),
]


@app.callback(help=_SUMMARY)
def group(version: VersionOption = False) -> None:
    """Take no other option: each belongs to a command."""


@app.command()
@with_options(WorkerSettings, functools.partial(read_settings, WorkerSettings))
def serve(settings: WorkerSettings, actions: Targets) -> None:
    """Run a worker for the actions of these modules.

    On SIGTERM it waits for running executions, then stops.
    """
    # Imported here: no other command needs them.
    from turnstile.common.http import listen  # noqa: PLC0415
    from turnstile.common.lifecycle import run_service  # noqa: PLC0415
    from turnstile.common.telemetry.tracing import configure_tracing  # noqa: PLC0415
    from turnstile.worker.health import serve_with_health  # noqa: PLC0415
    from turnstile.worker.service import WorkerService  # noqa: PLC0415

    configure_logging(level=settings.log_level, form=settings.log_format)
    start_notes = WarningRecorder()
    logging.getLogger().addHandler(start_notes)
    warn_of_unknown_settings(os.environ)
    configure_tracing(service="turnstile-worker", endpoint=settings.otlp_endpoint)
    loaded = _load(actions)
    port = settings.worker_http_port
    listener = None
    if port is not None:
        listener = listen(settings.worker_http_host, port, settings="TURNSTILE_WORKER_HTTP")

    async def run(stop: asyncio.Event) -> None:
        service = WorkerService(settings, actions, loaded, start_notes=start_notes)
        if listener is None:
            await service.serve(stop)
        else:
            await serve_with_health(service.serve(stop), service.readiness, service.degraded, listener)

    run_service(run)


@app.command("actions")
def show_actions(
    actions: Targets,
    ref: Annotated[
        str | None,
        typer.Option("--ref", metavar="ACTION", help="List this action alone. Example: --ref reports.render"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of action definitions.")] = False,
) -> None:
    """List the actions that these modules declare.

    To store the definition of one action as the code declares it: worker actions --actions reports.actions
    --ref reports.render --json | executor actions apply -
    """
    # The modules may print, and a program may read the output of this command.
    with contextlib.redirect_stdout(sys.stderr):
        loaded = _load(actions)
    if ref is not None:
        loaded = _only(ref, loaded)
    if as_json:
        print_json([action.definition.model_dump(mode="json") for action in loaded])
    else:
        _print_table(loaded)


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="worker")


def _load(targets: Sequence[str]) -> list[RegisteredAction]:
    try:
        return load_actions(*targets)
    except (ActionsNotFound, ActionDeclarationError) as error:
        raise bad_input(f"--actions {error}") from None
    except Exception as error:  # noqa: BLE001  (whatever the user's modules raise)
        raise CommandFailed(
            f"--actions {' '.join(targets)}: cannot be loaded\n{_traceback_of_module(error)}"
        ) from None


def _only(ref: str, loaded: Sequence[RegisteredAction]) -> list[RegisteredAction]:
    known = [action.definition.ref for action in loaded]
    if ref not in known:
        raise bad_input(f"--ref {ref}: these modules declare no such action, but {', '.join(known)}")
    return [loaded[known.index(ref)]]


def _traceback_of_module(error: Exception) -> str:
    """Return the traceback from the first line of the user's code on; for a syntax error, its location."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in (
        __file__,
        actions_module.__file__,
        importlib.__file__,
    )


def _print_table(loaded: Sequence[RegisteredAction]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    # In a pipe, rich assumes 80 columns and would wrap the lines.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("ACTION", "RUNNER", "LIMIT", "KEY", "TIMEOUT", "POOL", "MODULE"):
        table.add_column(heading, no_wrap=True)
    for action in loaded:
        definition = action.definition
        limit = "none" if definition.max_concurrent is None else str(definition.max_concurrent)
        timeout = "" if definition.timeout is None else format_duration(definition.timeout)
        cells = (definition.ref, definition.runner, limit, definition.concurrency_key or "", timeout)
        table.add_row(*(Text(cell) for cell in (*cells, definition.pool, action.module)))
    console.print(table)


if __name__ == "__main__":
    main()
