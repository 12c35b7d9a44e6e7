"""`executor submit`: ask for one execution, or for many from JSON Lines, and wait for their ends if told to.

In: arguments and lines. Out: acceptances, or the executions as they ended. Next: `bulk` sends the lines,
`waiting` waits.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from turnstile.common.command_line import EXIT_FAILED
from turnstile.common.domain.errors import Refusal
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import read_model
from turnstile.executor.cli.arguments import (
    bad_input,
    duration,
    encode,
    instant_text,
    piped_in,
    read_assignments,
    read_object,
)
from turnstile.executor.cli.bulk import Answered, read_lines, send
from turnstile.executor.cli.connection import Api, Json, with_api
from turnstile.executor.cli.executions import print_execution
from turnstile.executor.cli.output import JsonOption, print_json, print_line, progress, warn
from turnstile.executor.cli.waiting import wait_for

_STDIN = "-"


@with_api
def submit(
    api: Api,
    *,
    action_ref: Annotated[str | None, typer.Argument(metavar="REF", help="Like reports.render.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Parameters; a value that is JSON is read as JSON."),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="JSON|-", help="Parameters as one JSON object; '-': from stdin.")
    ] = None,
    bulk: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Submit one request body per line, in order; what is given here besides fills in what a "
            "line leaves out, and --idempotency-key gets the number of the line.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key is the same execution, however often it is sent.")
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(help="Names the queue, if the action has submitter_keys.")
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(parser=instant_text, metavar="INSTANT", help="Not before, like 2026-11-21T07:30:00Z."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Longest run, like 5m.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Longest wait for a start.")
    ] = None,
    callback_url: Annotated[str | None, typer.Option(help="Where the end is POSTed to.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Kept beside it; may be repeated.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; exit 1 unless it completed.")
    ] = False,
    wait_timeout: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="Longest --wait; exit 4 after it. [default: 1h]",
        ),
    ] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Ask for an execution of an action, or for many.

    Example: executor submit reports.render customer_id=7 --wait
    """
    asked: dict[str, Any] = {
        "action_ref": action_ref,
        "parameters": _parameters(parameters, assignments or []),
        "concurrency_key": concurrency_key,
        "run_at": run_at,
        "timeout": timeout,
        "ttl": ttl,
        "callback_url": callback_url,
        "metadata": read_assignments(metadata or [], where="--metadata") or None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    waiting_seconds = wait_timeout if wait else None
    if bulk is None:
        keyed = given if idempotency_key is None else {**given, "idempotency_key": idempotency_key}
        _submit_one(api, keyed, waiting_seconds=waiting_seconds, as_json=as_json)
    elif bulk == parameters == _STDIN:
        raise bad_input(
            "--bulk - and --parameters - cannot both read stdin; give one of them as a file or text"
        )
    else:
        with _opened(bulk) as stream:
            answers = send(api, read_lines(stream, defaults=given, key=idempotency_key))
            _submit_many(api, answers, waiting_seconds=waiting_seconds, as_json=as_json)


def _parameters(text: str | None, assignments: list[str]) -> dict[str, Any] | None:
    if text is None and not assignments:
        return None
    whole = {} if text is None else read_object(text, where="--parameters")
    return {**whole, **read_assignments(assignments, where="parameter")}


def _submit_one(api: Api, body: dict[str, Any], *, waiting_seconds: float | None, as_json: bool) -> None:
    if "action_ref" not in body:
        raise bad_input(
            "REF is missing: expected an action, like 'executor submit reports.render customer_id=7'"
        )
    content = encode(body)
    try:
        read_model(ExecutionRequested, body)
    except Refusal as refusal:
        raise bad_input(f"{refusal.code}: {refusal.message}") from None
    accepted = api.post("/executions", content)
    if waiting_seconds is not None:
        _wait_for_one(api, accepted, timeout_seconds=waiting_seconds, as_json=as_json)
    elif as_json:
        print_json(accepted)
    else:
        place = "" if accepted["position"] is None else f", position {accepted['position']}"
        again = ", submitted before under this key" if accepted["duplicate"] else ""
        print_line(f"{accepted['id']}: {accepted['status']}{place}{again}")


def _wait_for_one(api: Api, accepted: Json, *, timeout_seconds: float, as_json: bool) -> None:
    ended: list[Json] = []
    with progress(f"execution {accepted['id']}", total=1):
        wait_for(api, [accepted["id"]], timeout_seconds=timeout_seconds, on_end=ended.append)
    (execution,) = ended
    if as_json:
        print_json(execution)
    else:
        print_execution(execution)
    if execution["status"] != Status.COMPLETED:
        raise typer.Exit(EXIT_FAILED)


def _submit_many(
    api: Api, answers: Iterator[list[Answered]], *, waiting_seconds: float | None, as_json: bool
) -> None:
    line_of: dict[int, int] = {}
    accepted = refused = duplicates = 0
    with progress("submitted", total=None) as advance:
        for answered in (one for several in answers for one in several):
            advance(1)
            if answered.execution_id is None:
                refused += 1
                if not as_json:
                    warn(f"line {answered.line}: {answered.answer['code']}: {answered.answer['detail']}")
            else:
                accepted += 1
                duplicates += bool(answered.answer["duplicate"])
                line_of.setdefault(answered.execution_id, answered.line)
            if as_json and (waiting_seconds is None or answered.execution_id is None):
                print_json({"line": answered.line, **answered.answer}, on_one_line=True)
    if not as_json:
        print_line(f"{accepted} accepted, {duplicates} of them submitted before, {refused} refused")
    if waiting_seconds is not None:
        refused += _wait_for_many(api, line_of, timeout_seconds=waiting_seconds, as_json=as_json)
    if refused:
        raise typer.Exit(EXIT_FAILED)


def _wait_for_many(api: Api, line_of: dict[int, int], *, timeout_seconds: float, as_json: bool) -> int:
    """Return how many did not complete."""
    ends: Counter[str] = Counter()
    with progress("ended", total=len(line_of)) as advance:

        def on_end(execution: Json) -> None:
            ends[execution["status"]] += 1
            advance(1)
            if as_json:
                print_json({"line": line_of[execution["id"]], **execution}, on_one_line=True)

        wait_for(api, line_of, timeout_seconds=timeout_seconds, on_end=on_end)
    if not as_json:
        print_line(
            ", ".join(f"{count} {status}" for status, count in ends.most_common()) or "nothing to wait for"
        )
    return ends.total() - ends[Status.COMPLETED]


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == _STDIN:
        yield piped_in()
        return
    try:
        stream = Path(path).open("rb")  # noqa: SIM115  (closed below; its errors are ours only here)
    except OSError as error:
        raise bad_input(f"--bulk {path}: {error.strerror}; expected a file of JSON Lines, or '-'") from None
    with stream:
        yield stream
