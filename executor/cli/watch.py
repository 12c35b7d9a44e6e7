"""`executor watch`: follows one execution to its end; the exit code tells how it ended."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Console

from turnstile.common.command_line import EXIT_TIMED_OUT, CommandFailed
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.executor.cli.arguments import ExecutionIdArgument, duration
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.execution_view import fields
from turnstile.executor.cli.following import LogReading, Patience
from turnstile.executor.cli.logs import LogPrinter
from turnstile.executor.cli.output import JsonOption, plain, print_fields, print_json, print_line
from turnstile.executor.cli.waiting_sentence import waiting_sentence

EXIT_CODES: Final = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.TIMEOUT: 5,
    Status.CANCELLED: 6,
    Status.EXPIRED: 7,
    Status.ABANDONED: 8,
}
"""One for each end; 2, 3 and 4 mean what they mean for all commands."""
_LOOK_SECONDS: Final = 0.5


@with_api
def watch(
    api: Api,
    execution_id: ExecutionIdArgument,
    logs: Annotated[bool, typer.Option("--logs", help="Show what it logs, too.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Longest watch, like 5m; exit 4 after it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Follow an execution to its end; the exit code tells how.

    0 completed, 1 failed, 5 timeout, 6 cancelled, 7 expired, 8 abandoned. With --json: the execution each
    time it has moved, and --logs is left out.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    reading = LogReading(api, execution_id) if logs and not as_json else None
    log = LogPrinter(as_json=False)
    patience = Patience()
    seen: tuple[str, int] | None = None
    with _line_below(shown=not as_json) as say:
        while True:
            execution = patience.ask(lambda: api.get(f"/executions/{execution_id}"))
            if seen != (seen := (execution["status"], execution["attempt"])):
                _print_move(execution, as_json=as_json)
            for piece in reading.fresh() if reading else ():
                log.print(piece)
            if execution["status"] in TERMINAL:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise CommandFailed(
                    f"watched too long: {execution_id} is {execution['status']}, and is not stopped by that",
                    exit_code=EXIT_TIMED_OUT,
                )
            say(waiting_sentence(execution) or execution["status"])
            time.sleep(_LOOK_SECONDS)
    log.end()
    if not as_json:
        print_fields(
            (name, value) for name, value in fields(execution) if name in ("result", "error", "took")
        )
    raise typer.Exit(EXIT_CODES[Status(execution["status"])])


def _print_move(execution: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(execution, on_one_line=True)
        return
    attempt = f", attempt {execution['attempt']}" if execution["attempt"] > 1 else ""
    worker = f" on {execution['worker_id']}" if execution["status"] == Status.RUNNING else ""
    waits = waiting_sentence(execution)
    print_line(
        f"{execution['id']} {execution['action_ref']}: {execution['status']}{attempt}{worker}"
        + (f"; {waits}" if waits else "")
    )


@contextmanager
def _line_below(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show what it is about just now below the rest, on a terminal only."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal and sys.stdout.isatty()):
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(plain(text))
