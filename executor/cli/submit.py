"""`executor submit`: one execution, or many from JSON Lines, optionally waiting until they end.

In: arguments and lines. Out: one answer per line, in order. Lines are sent in lists, one request at a time,
so that the order of the lines is the order of arrival (P2). A rejected line does not affect other lines.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated, Any, Final

import typer
from pydantic_core import from_json

from turnstile.common.cli import CommandFailed, bad_input
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.common.exit_codes import ExitCode
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import read_model
from turnstile.executor.cli.arguments import (
    DURATION,
    INSTANT,
    PRIORITY,
    argument,
    encode,
    given,
    opened,
    option,
    read_assignments,
    read_parameters,
)
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable, Json, OutageRetry, with_api
from turnstile.executor.cli.executions import last_traceback, print_execution
from turnstile.executor.cli.output import JsonOption, counted, print_json, print_line, progress, show, warn

LIST_MAX: Final = 500
LIST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Half of what the API accepts in one list."""
_EXAMPLE: Final = '{"action_ref": "reports.render", "parameters": {"customer_id": 7}}'
_STDIN: Final = "-"
_WATCHED_MAX: Final = 20
"""Executions that are read in one round: queues are FIFO, so the first to end are among the first."""
_INTERVAL_MIN_SECONDS: Final = 0.05
_INTERVAL_MAX_SECONDS: Final = 2.0
_INTERVAL_FACTOR: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of input: a request body, or why it is invalid."""

    number: int
    body: bytes
    refusal: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a line: an acceptance with an `id`, or a problem with a `code` and a `detail`."""

    line: int
    content: Mapping[str, Any]

    @property
    def execution_id(self) -> int | None:
        """The execution, if the line was accepted."""
        return self.content.get("id") if "code" not in self.content else None


@with_api
def submit(
    api: Api,
    *,
    action_ref: Annotated[str | None, argument("REF", "Action, like reports.render.")] = None,
    assignments: Annotated[
        list[str] | None,
        argument(
            "NAME=VALUE",
            "Parameters; a value that is valid JSON is parsed. Text that looks like JSON: 'name=\"7\"'.",
        ),
    ] = None,
    parameters: Annotated[
        str | None, option("JSON|-", "All parameters as one JSON object; '-': from stdin.")
    ] = None,
    bulk: Annotated[
        str | None,
        option(
            "FILE|-",
            "Submit one execution per line of a JSON Lines file, in order; '-': from stdin. Other "
            "options are defaults for the lines; the line number is appended to --idempotency-key.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, option("KEY", "A request with the same key returns the existing execution.")
    ] = None,
    concurrency_key: Annotated[
        str | None, option("KEY", "Concurrency key, if the action has submitter_keys.")
    ] = None,
    singleton: Annotated[
        str | None, option("KEY", "At most one execution of the action with this key at a time.")
    ] = None,
    singleton_when: Annotated[
        str | None,
        option("waiting|waiting_or_running", "Which execution counts. [default: waiting_or_running]"),
    ] = None,
    singleton_then: Annotated[
        str | None,
        option(
            "return_existing|refuse|cancel_running",
            "What becomes of a second one: cancel_running cancels the existing one. "
            "[default: return_existing]",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        option(PRIORITY, "1 goes first, 5 last. [default: 3, or the action's priority_min if larger]"),
    ] = None,
    run_at: Annotated[str | None, option(INSTANT, "Earliest start, like 2026-11-21T07:30:00Z.")] = None,
    delay: Annotated[float | None, option(DURATION, "Earliest start from its admission, like 5m.")] = None,
    timeout: Annotated[float | None, option(DURATION, "Maximum run time, like 5m.")] = None,
    ttl: Annotated[
        float | None, option(DURATION, "Maximum time in the queue; then the execution expires.")
    ] = None,
    callback_url: Annotated[str | None, option("URL", "URL that receives the outcome as a webhook.")] = None,
    metadata: Annotated[
        list[str] | None, option("NAME=VALUE", "Stored with the execution; repeatable.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the execution ends; exit code 1 unless it completed.")
    ] = False,
    wait_timeout: Annotated[
        float, option(DURATION, "Timeout of --wait; exit code 4 after it. [default: 1h]", show_default=False)
    ] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Submit one execution, or many from a file.

    Examples: executor submit reports.render customer_id=7 --wait;
    executor submit reports.render --bulk requests.jsonl
    """
    fields = given(
        action_ref=action_ref,
        parameters=_parameters(parameters, assignments or []),
        concurrency_key=concurrency_key,
        singleton=given(key=singleton, when=singleton_when, then=singleton_then) or None,
        priority=priority,
        run_at=run_at,
        delay=delay,
        timeout=timeout,
        ttl=ttl,
        callback_url=callback_url,
        metadata=read_assignments(metadata or [], where="--metadata") or None,
    )
    waiting_seconds = wait_timeout if wait else None
    if bulk is None:
        keyed = {**fields, **given(idempotency_key=idempotency_key)}
        _submit_one(api, keyed, waiting_seconds=waiting_seconds, as_json=as_json)
    elif bulk == parameters == _STDIN:
        raise bad_input("--bulk - and --parameters - cannot both read stdin; give a file or a value for one")
    else:
        with opened(bulk, hint="; expected a JSON Lines file, or '-'") as stream:
            answers = send(api, read_lines(stream, defaults=fields, key=idempotency_key))
            _submit_many(api, answers, waiting_seconds=waiting_seconds, as_json=as_json)


def acceptance(accepted: Json) -> str:
    """Return what the API says of an accepted request: status, position, duplicate."""
    position = "" if accepted["position"] is None else f", position {accepted['position']}"
    duplicate = " (duplicate: this idempotency key was used before)" if accepted["duplicate"] else ""
    return f"{accepted['status']}{position}{duplicate}"


def read_lines(stream: IO[bytes], *, defaults: Mapping[str, Any], key: str | None) -> Iterator[Line]:
    """Yield the lines that are not blank, with `defaults` for the fields that a line does not have.

    A line without an idempotency key gets `key` and its number, so that the same file can be sent again.
    """
    number = 0
    while text := stream.readline(LIST_BYTES_MAX + 1):
        number += 1
        if len(text) > LIST_BYTES_MAX:
            while text and not text.endswith(b"\n"):
                text = stream.readline(LIST_BYTES_MAX + 1)
            yield _refused(number, Code.TOO_LARGE, f"line: more than {LIST_BYTES_MAX} bytes")
        elif text.strip():
            yield _read_line(number, text, defaults, key)


def send(api: Api, lines: Iterable[Line]) -> Iterator[list[Answer]]:
    """Send the lines and yield the answers, list by list; raises if a list is rejected or not answered."""
    for chunk in _lists(lines):
        valid = [line.body for line in chunk if line.refusal is None]
        numbers = f"lines {chunk[0].number} to {chunk[-1].number}"
        around = "earlier lines were answered, later lines were not sent"
        try:
            answers = iter(api.post("/executions", b"[" + b",".join(valid) + b"]")["items"] if valid else [])
        except ApiUnreachable as error:
            raise ApiUnreachable(
                f"{error.message}\n{numbers}: unknown whether they were accepted; {around}; with "
                "--idempotency-key the whole file can be submitted again"
            ) from None
        except ApiRefused as refusal:
            detail = f"{refusal.problem.get('detail', 'no detail')}\n{numbers}: rejected as a whole; {around}"
            raise ApiRefused({**refusal.problem, "detail": detail}) from None
        yield [
            Answer(line=line.number, content=next(answers) if line.refusal is None else line.refusal)
            for line in chunk
        ]


def _parameters(text: str | None, assignments: list[str]) -> dict[str, Any] | None:
    if text is None and not assignments:
        return None
    whole = {} if text is None else read_parameters(text)
    return {**whole, **read_assignments(assignments, where="parameter")}


def _submit_one(api: Api, body: dict[str, Any], *, waiting_seconds: float | None, as_json: bool) -> None:
    if "action_ref" not in body:
        raise bad_input(
            "REF is missing; expected an action, like 'executor submit reports.render customer_id=7'"
        )
    content = encode(body)
    try:
        read_model(ExecutionRequested, body)
    except Refusal as refusal:
        raise bad_input(f"{refusal.code}: {refusal.message}") from None
    accepted = api.post("/executions", content)
    if waiting_seconds is not None:
        _wait_for_one(api, accepted, timeout_seconds=waiting_seconds, as_json=as_json)
    else:
        show(accepted, lambda it: print_line(f"{it['id']}: {acceptance(it)}"), as_json=as_json)


def _wait_for_one(api: Api, accepted: Json, *, timeout_seconds: float, as_json: bool) -> None:
    ended: list[Json] = []
    with progress(f"execution {accepted['id']}", total=1):
        _wait(api, [accepted["id"]], timeout_seconds=timeout_seconds, on_end=ended.append)
    (execution,) = ended
    show(execution, print_execution, as_json=as_json)
    if execution["status"] != Status.COMPLETED:
        if not as_json and (found := last_traceback(api, execution)):
            warn(found)
        raise typer.Exit(ExitCode.FAILED)


def _submit_many(
    api: Api, answers: Iterator[list[Answer]], *, waiting_seconds: float | None, as_json: bool
) -> None:
    line_of: dict[int, int] = {}
    accepted = rejected = duplicates = 0
    with progress("submitted", total=None) as advance:
        for answer in (one for several in answers for one in several):
            advance(1)
            if answer.execution_id is None:
                rejected += 1
                if not as_json:
                    warn(f"line {answer.line}: {answer.content['code']}: {answer.content['detail']}")
            else:
                accepted += 1
                duplicates += bool(answer.content["duplicate"])
                line_of.setdefault(answer.execution_id, answer.line)
            if as_json and (waiting_seconds is None or answer.execution_id is None):
                print_json({"line": answer.line, **answer.content}, on_one_line=True)
    if not as_json:
        print_line(f"{accepted} accepted ({counted(duplicates, 'duplicate')}), {rejected} rejected")
    if waiting_seconds is not None:
        rejected += _wait_for_many(api, line_of, timeout_seconds=waiting_seconds, as_json=as_json)
    if rejected:
        raise typer.Exit(ExitCode.FAILED)


def _wait_for_many(api: Api, line_of: dict[int, int], *, timeout_seconds: float, as_json: bool) -> int:
    """Return how many did not complete."""
    statuses: Counter[str] = Counter()
    with progress("ended", total=len(line_of)) as advance:

        def on_end(execution: Json) -> None:
            statuses[execution["status"]] += 1
            advance(1)
            if as_json:
                print_json({"line": line_of[execution["id"]], **execution}, on_one_line=True)

        _wait(api, line_of, timeout_seconds=timeout_seconds, on_end=on_end)
    if not as_json:
        counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        print_line(counts or "No executions to wait for")
    return statuses.total() - statuses[Status.COMPLETED]


def _wait(
    api: Api, execution_ids: Iterable[int], *, timeout_seconds: float, on_end: Callable[[Json], None]
) -> None:
    """Call `on_end` with each execution that has ended; raises CommandFailed at the timeout."""
    deadline = time.monotonic() + timeout_seconds
    outages = OutageRetry(has_succeeded=True, deadline=deadline)
    unwatched, watched = deque(execution_ids), list[int]()
    interval_seconds = _INTERVAL_MIN_SECONDS
    while unwatched or watched:
        while unwatched and len(watched) < _WATCHED_MAX:
            watched.append(unwatched.popleft())
        executions = outages.call(lambda: [api.get(f"/executions/{each}") for each in watched])
        ended = [execution for execution in executions if execution["status"] in TERMINAL]
        for execution in ended:
            watched.remove(execution["id"])
            on_end(execution)
        if ended:
            interval_seconds = _INTERVAL_MIN_SECONDS
            continue
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"timeout: {len(watched) + len(unwatched)} executions have not ended and continue; "
                f"see 'executor get {watched[0]}'",
                exit_code=ExitCode.TIMED_OUT,
            )
        time.sleep(min(interval_seconds, max(deadline - time.monotonic(), 0.0)))
        interval_seconds = min(interval_seconds * _INTERVAL_FACTOR, _INTERVAL_MAX_SECONDS)


def _read_line(number: int, text: bytes, defaults: Mapping[str, Any], key: str | None) -> Line:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        detail = f"line: invalid JSON: {error}; expected an object like {_EXAMPLE}"
        return _refused(number, Code.INVALID_MESSAGE, detail)
    if not isinstance(value, dict):
        return _refused(number, Code.INVALID_MESSAGE, f"line: not an object; expected one like {_EXAMPLE}")
    keyed = {} if key is None else {"idempotency_key": f"{key}:{number}"}
    body = encode({**defaults, **keyed, **value})
    if len(body) > LIST_BYTES_MAX:
        return _refused(number, Code.TOO_LARGE, f"line: more than {LIST_BYTES_MAX} bytes")
    return Line(number=number, body=body)


def _refused(number: int, code: Code, detail: str) -> Line:
    return Line(number=number, body=b"", refusal=Json(code=code.value, detail=detail))


def _lists(lines: Iterable[Line]) -> Iterator[Sequence[Line]]:
    chunk: list[Line] = []
    chunk_bytes = 0
    for line in lines:
        if chunk and (len(chunk) == LIST_MAX or chunk_bytes + len(line.body) > LIST_BYTES_MAX):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(line)
        chunk_bytes += len(line.body)
    if chunk:
        yield chunk
