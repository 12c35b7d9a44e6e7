"""`executor get`, `submission`, `list`, `watch`, `logs`: read and follow executions over the HTTP API."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import typer
from rich.console import Console

from turnstile.common.cli import CommandFailed
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.arguments import DURATION, ExecutionIdArgument, argument, option, with_filter
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable, Json, OutageRetry, with_api
from turnstile.executor.cli.execution_view import (
    ATTEMPT_COLUMNS,
    GATE_COLUMNS,
    LIST_COLUMNS,
    PATH_COLUMNS,
    fields,
    gate_rows,
    help_sentence,
    waiting_sentence,
)
from turnstile.executor.cli.output import (
    CursorOption,
    JsonOption,
    Listing,
    limit_of,
    plain,
    print_fields,
    print_json,
    print_line,
    print_more,
    print_text,
    show,
    warn,
)

EXIT_CODES: Final = {
    Status.COMPLETED: ExitCode.OK,
    Status.FAILED: ExitCode.FAILED,
    Status.TIMEOUT: ExitCode.WATCHED_TIMEOUT,
    Status.CANCELLED: ExitCode.WATCHED_CANCELLED,
    Status.EXPIRED: ExitCode.WATCHED_EXPIRED,
    Status.ABANDONED: ExitCode.WATCHED_ABANDONED,
}
"""Exit codes of `watch`; the others mean what they mean for all commands."""
_LIST: Final = Listing(path="/executions", empty="No executions", columns=LIST_COLUMNS)
_INTERVAL_SECONDS: Final = 0.5
_TRACEBACK: Final = re.compile(
    r"^ *\+? *(?:Exception Group )?Traceback \(most recent call last\):", re.MULTILINE
)
_TRACEBACK_LINES_MAX: Final = 12
"""Of these in `executor get`."""
_TRACEBACK_CHARS_MAX: Final = 10_000
"""Of the end of a traceback: an error that is nested a thousand times has a long one."""


@with_api
def get(api: Api, execution_id: ExecutionIdArgument, as_json: JsonOption = False) -> None:
    """Show an execution: status, attempts, and why it waits or failed."""
    execution = api.get(f"/executions/{execution_id}")
    show(execution, print_execution, as_json=as_json)
    if not as_json and execution["status"] in TERMINAL and execution["status"] != Status.COMPLETED:
        _print_what_failed(api, execution)


@with_api
def submission(
    api: Api,
    request_id: Annotated[
        UUID, argument("REQUEST_ID", "Request id that turnstile.submit or submit_in returned.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show whether a request of a database transaction was admitted or rejected."""
    show(api.get(f"/submissions/{request_id}"), lambda found: print_fields(found.items()), as_json=as_json)


@with_api
@with_filter
def list_executions(
    api: Api,
    *,
    matching: dict[str, Any],
    idempotency_key: Annotated[
        str | None, option("KEY", "Only the executions with this idempotency key.")
    ] = None,
    order: Annotated[
        Literal["newest", "oldest"], option("newest|oldest", "Which executions come first.")
    ] = "newest",
    limit: Annotated[int, limit_of("executions", 100_000)] = 50,
    cursor: CursorOption = None,
    as_json: JsonOption = False,
) -> None:
    """List executions, newest or oldest first."""
    metadata = [f"{name}:{value}" for name, value in matching.get("metadata", {}).items()]
    query = {**matching, "metadata": metadata or None, "idempotency_key": idempotency_key, "order": order}
    _LIST.print_page(api, query, limit=limit, cursor=cursor, as_json=as_json)


@with_api
def watch(
    api: Api,
    execution_id: ExecutionIdArgument,
    logs: Annotated[bool, typer.Option("--logs", help="Print its logs too.")] = False,
    timeout: Annotated[
        float | None, option(DURATION, "Stop watching after this duration; exit code 4.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch an execution until it ends.

    Exit codes: 0 completed, 1 failed, 5 timeout, 6 cancelled, 7 expired, 8 abandoned. With --json: prints
    the execution after each change of its status, without logs.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    reader = LogReader(api, execution_id) if logs and not as_json else None
    printer = LogPrinter(as_json=False)
    outages = OutageRetry()
    seen: tuple[str, int] | None = None
    with _status_line(shown=not as_json) as update:
        while True:
            execution = outages.call(lambda: api.get(f"/executions/{execution_id}"))
            if seen != (seen := (execution["status"], execution["attempt"])):
                _print_change(execution, as_json=as_json)
            for piece in reader.new_pieces() if reader else ():
                printer.print(piece)
            if execution["status"] in TERMINAL:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise CommandFailed(
                    f"timeout: execution {execution_id} is {execution['status']}; it continues",
                    exit_code=ExitCode.TIMED_OUT,
                )
            update(waiting_sentence(execution) or execution["status"])
            time.sleep(_INTERVAL_SECONDS)
    printer.end()
    if not as_json:
        print_fields(
            (name, value) for name, value in fields(execution) if name in ("result", "error", "duration")
        )
    raise typer.Exit(EXIT_CODES[Status(execution["status"])])


@with_api
def logs(
    api: Api,
    execution_id: ExecutionIdArgument,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue until the execution ends; the delay is about 1 s."),
    ] = False,
    attempt: Annotated[int | None, option("NUMBER", "Only this attempt.", min=1, max=2**31 - 1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of an execution.

    With --json: one JSON object per piece. About the last 64 KiB of each attempt are kept.
    """
    reader = LogReader(api, execution_id, attempt=attempt)
    printer = LogPrinter(as_json=as_json)
    while True:
        for piece in reader.new_pieces():
            printer.print(piece)
        if reader.has_ended or not follow:
            break
        time.sleep(_INTERVAL_SECONDS)
    printer.end()


def print_execution(execution: Json) -> None:
    """Print what an execution waits for, the execution and its attempts."""
    if blocker := waiting_sentence(execution):
        print_line(f"Waits: {blocker}")
        print_line(f"What helps: {help_sentence(execution)}")
        print_more(PATH_COLUMNS, execution["path"])
        print_line("")
    print_fields(fields(execution))
    print_more(ATTEMPT_COLUMNS, execution["attempts"])
    if gates := execution.get("gates"):
        print_more(GATE_COLUMNS, gate_rows(gates, has_ended=execution["completed_at"] is not None))


def _print_what_failed(api: Api, execution: Json) -> None:
    """Print the end of the last traceback, and the commands for more and for another try."""
    lines = last_traceback(api, execution).splitlines()
    print_line("")
    for line in lines[-_TRACEBACK_LINES_MAX:]:
        print_line(line)
    if execution["attempt"]:
        print_line(f"Logs:  executor logs {execution['id']}")
    print_line(f"Retry: executor retry {execution['id']}")


class LogReader:
    """Reads the logs of one execution from a cursor; short outages of the API are retried."""

    def __init__(self, api: Api, execution_id: int, *, attempt: int | None = None) -> None:
        self._api = api
        self._path = f"/executions/{execution_id}/logs"
        self._attempt = attempt
        self._cursor: str | None = None
        self._outages = OutageRetry()
        self.has_ended = False

    def new_pieces(self) -> Iterator[Json]:
        """Yield the pieces that were written since the last call."""
        while not self.has_ended:
            page = self._outages.call(self._page)
            self.has_ended, self._cursor = page["ended"], page["next_cursor"]
            yield from page["items"]
            if not page["items"]:
                return

    def _page(self) -> Json:
        return self._api.get(self._path, {"attempt": self._attempt, "cursor": self._cursor})


def last_traceback(api: Api, execution: Json) -> str:
    """Return the end of the log of the latest attempt, from its last traceback on; empty without one.

    Also empty if the logs cannot be read: the execution itself is shown already.
    """
    if not execution["attempt"]:
        return ""
    reader = LogReader(api, execution["id"], attempt=execution["attempt"])
    try:
        text = "".join(piece["text"] for piece in reader.new_pieces())
    except (ApiRefused, ApiUnreachable):
        return ""
    starts = [match.start() for match in _TRACEBACK.finditer(text)]
    return text[starts[-1] :].rstrip()[-_TRACEBACK_CHARS_MAX:] if starts else ""


class LogPrinter:
    """Prints pieces of logs: the text on stdout, a heading per attempt on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._attempt: int | None = None
        self._is_at_line_start = True

    def print(self, piece: Json) -> None:
        """Print one piece."""
        if self._as_json:
            print_json(piece, on_one_line=True)
            return
        attempt, text = piece["attempt"], piece["text"]
        if attempt != self._attempt:
            self.end()
            if self._attempt is not None or attempt > 1:
                warn(f"--- attempt {attempt} ---")
            self._attempt = attempt
        print_text(text)
        self._is_at_line_start = text.endswith("\n")

    def end(self) -> None:
        """End an unfinished line."""
        if not self._is_at_line_start:
            print_text("\n")
            self._is_at_line_start = True


def _print_change(execution: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(execution, on_one_line=True)
        return
    attempt = f", attempt {execution['attempt']}" if execution["attempt"] > 1 else ""
    worker = f" on {execution['worker_id']}" if execution["status"] == Status.RUNNING else ""
    reason = waiting_sentence(execution)
    print_line(
        f"{execution['id']} {execution['action_ref']}: {execution['status']}{attempt}{worker}"
        + (f"; {reason}" if reason else "")
    )


@contextmanager
def _status_line(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a line below the output that the yielded function updates, on a terminal only."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal and sys.stdout.isatty()):
        yield lambda _: None
        return
    with console.status("") as line:
        yield lambda text: line.update(plain(text))
