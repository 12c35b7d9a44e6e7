"""Options, arguments and the parsing of what users type: JSON, durations, instants, names, filters.

In: the words of a command line. Out: values, or an error that shows a valid example. The shell completes
names of actions and workers from the API.
"""

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import IO, Annotated, Any, Final, TypeVar

import typer
from pydantic_core import from_json

from turnstile.common.cli import CommandFailed, environment_name
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.states import Status
from turnstile.common.exit_codes import ExitCode
from turnstile.common.fields import UNITS_MAX, check_pool, check_ref, check_resource, parse_priority

T = TypeVar("T")
NO_LIMIT: Final = -1
_COMPLETION_SECONDS: Final = 1.0
_COMPLETIONS_MAX: Final = 1000


def bad_input(message: str) -> CommandFailed:
    """Return the error for an invalid argument."""
    return CommandFailed(message, exit_code=ExitCode.USAGE)


def read_assignments(words: Sequence[str], *, where: str) -> dict[str, Any]:
    """Return `name=value` words as an object; a value that is valid JSON is parsed, any other is a string."""
    return {name: _json_or_text(value) for name, value in _assignments(words, where).items()}


def piped_in() -> IO[bytes]:
    """Return stdin; raises CommandFailed where it is closed."""
    if sys.stdin is None:
        raise bad_input("stdin is closed; redirect it, or give a file or a value in place of '-'")
    return sys.stdin.buffer


def is_interactive() -> bool:
    """Return whether stdin is a terminal, so that a question can be answered."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_parameters(text: str) -> dict[str, Any]:
    """Return the JSON object of the option `--parameters`, or that on stdin where `text` is '-'."""
    source = piped_in().read() if text == "-" else _utf8(text)
    example = "expected an object like '{\"customer_id\": 7}'"
    try:
        value = from_json(source, allow_inf_nan=False)
    except ValueError as error:
        raise bad_input(f"--parameters: invalid JSON: {error}; {example}") from None
    if not isinstance(value, dict):
        raise bad_input(f"--parameters: not a JSON object; {example}")
    return value


def encode(value: object) -> bytes:
    """Return `value` as JSON for the API."""
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _option_of(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for options and arguments: what it refuses is a usage error."""

    @functools.wraps(parse)
    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


duration: Final = _option_of(parse_duration)
"""Returns the seconds of a duration option."""
_checked_ref: Final = _option_of(check_ref)


def priority_number(text: str) -> int:
    """Return the number of a priority option."""
    try:
        return parse_priority(text)
    except ValueError as error:
        raise typer.BadParameter(f"invalid priority {text[:40]!r}; {error}") from None


def instant_text(text: str) -> str:
    """Return an instant option unchanged, after a check."""
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise typer.BadParameter(
            f"invalid instant {text!r}; expected date, time and zone, like 2026-11-21T07:30:00Z"
        )
    return text


def execution_id(text: str) -> int:
    """Return an execution id."""
    return _id(text, "execution id", like="4711, as 'executor list' shows")


def token_id(text: str) -> int:
    """Return the id of a token."""
    return _id(text, "token id", like="7, as 'executor tokens list' shows")


def _id(text: str, what: str, *, like: str) -> int:
    if text.isascii() and text.isdigit() and 0 < (number := int(text[:20])) < 2**63:
        return number
    raise typer.BadParameter(f"invalid {what} {text[:40]!r}; expected a number like {like}")


def parse_limit(text: str) -> int:
    """Return a limit; -1 for "none", because typer reads None as "not given"."""
    if text == "none":
        return NO_LIMIT
    # Nine digits are enough to see that a number is too large; int() of thousands is slow.
    if text.isascii() and text.isdigit() and (limit := int(text.lstrip("0")[:9] or "0")) <= UNITS_MAX:
        return limit
    raise typer.BadParameter(
        f"invalid limit {text[:40]!r}; expected a number from 0 to {UNITS_MAX}, like 4, or 'none'"
    )


def limit_option(help_text: str) -> Any:
    """Return the option of a limit, which `parse_limit` reads."""
    return typer.Option(metavar="NUMBER|none", parser=parse_limit, help=help_text)


def limit_or_none(limit: int) -> int | None:
    """Return what `parse_limit` read as the API writes it."""
    return None if limit == NO_LIMIT else limit


def _completion(path: str, field: str, **query: str) -> Callable[[str], list[str]]:
    """Return what completes names from a list; none if the API does not respond within a second."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in _names(path, field, query) if name.startswith(incomplete)]

    return complete


_complete_ref: Final = _completion("/actions", "ref")
complete_worker: Final = _completion("/workers", "id", state="live")
"""Completes the ids of live workers."""
ExecutionIdArgument = Annotated[
    int, typer.Argument(metavar="ID", parser=execution_id, help="Execution id, like 4711.")
]
_REF = typer.Argument(
    metavar="REF", parser=_checked_ref, autocompletion=_complete_ref, help="Action, like reports.render."
)
RefArgument = Annotated[str, _REF]
RefsArgument = Annotated[list[str], _REF]
RESOURCE_ARGUMENT = typer.Argument(
    metavar="NAME",
    parser=_option_of(check_resource),
    autocompletion=_completion("/resources", "name"),
    help="Resource, like autocad.",
)
ResourceArgument = Annotated[str, RESOURCE_ARGUMENT]
ResourcesArgument = Annotated[list[str], RESOURCE_ARGUMENT]
POOL_ARGUMENT = typer.Argument(
    metavar="NAME",
    parser=_option_of(check_pool),
    autocompletion=_completion("/pools", "name"),
    help="Pool, like default.",
)
PoolArgument = Annotated[str, POOL_ARGUMENT]


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        known = ", ".join(Status)
        raise typer.BadParameter(
            f"unknown status {text[:40]!r}; expected one of {known}; for several, repeat the option"
        ) from None


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in Status if status.startswith(incomplete)]


def _filter_options(
    *,
    action: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            parser=_checked_ref,
            autocompletion=_complete_ref,
            help="Executions of this action.",
        ),
    ] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            metavar="STATUS",
            parser=_status,
            autocompletion=_complete_status,
            help=f"Executions with this status; repeatable. One of {', '.join(Status)}.",
        ),
    ] = None,
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Executions with this concurrency key.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(parser=priority_number, metavar="1-5", help="Executions with this priority."),
    ] = None,
    created_after: Annotated[
        str | None,
        typer.Option(
            parser=instant_text,
            metavar="INSTANT",
            help="Executions created after this instant, like 2026-11-21T07:30:00Z.",
        ),
    ] = None,
    created_before: Annotated[
        str | None,
        typer.Option(parser=instant_text, metavar="INSTANT", help="Executions created before this instant."),
    ] = None,
    completed_after: Annotated[
        str | None,
        typer.Option(parser=instant_text, metavar="INSTANT", help="Executions ended after this instant."),
    ] = None,
    completed_before: Annotated[
        str | None,
        typer.Option(parser=instant_text, metavar="INSTANT", help="Executions ended before this instant."),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Executions with this text in their error; case is ignored."),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(metavar="ID", autocompletion=complete_worker, help="Executions of this worker."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Executions with this metadata; repeatable, all must match."),
    ] = None,
) -> dict[str, Any]:
    """Return the filter as the API takes it, without options that were not given."""
    given: dict[str, Any] = {
        "action_ref": action,
        "status": [one.value for one in status] if status else None,
        "concurrency_key": concurrency_key,
        "priority": priority,
        "created_after": created_after,
        "created_before": created_before,
        "completed_after": completed_after,
        "completed_before": completed_before,
        "error": error,
        "worker_id": worker,
        "metadata": _assignments(metadata or (), "--metadata") or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def with_filter(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select executions; its parameter `matching` receives the filter."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(_filter_options, eval_str=True).parameters

    @functools.wraps(command)
    def filtered(*args: Any, **given: Any) -> None:
        matching = _filter_options(**{name: given.pop(name) for name in options})
        command(*args, matching=matching, **given)

    parameters = [
        each
        for parameter in signature.parameters.values()
        for each in (options.values() if parameter.name == "matching" else [parameter])
    ]
    filtered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return filtered


def _names(path: str, field: str, query: Mapping[str, str]) -> list[str]:
    from turnstile.executor.cli.client import ApiSettings, connect  # noqa: PLC0415

    settings = {name: os.environ.get(environment_name(name)) for name in ApiSettings.model_fields}
    try:
        with contextlib.closing(connect(**settings)) as api:
            page = api.get(path, {**query, "limit": _COMPLETIONS_MAX}, timeout_seconds=_COMPLETION_SECONDS)
            return [item[field] for item in page["items"]]
    except CommandFailed:
        # An error message would garble the command line that is being typed.
        return []


def _assignments(words: Sequence[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise bad_input(f"{where} {word!r}: expected NAME=VALUE, like customer_id=7")
        if name in found:
            raise bad_input(f"{where} {word!r}: {name} is given twice")
        found[name] = value
    return found


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_input("the arguments are not valid UTF-8") from None


def _json_or_text(text: str) -> Any:
    try:
        return from_json(_utf8(text), allow_inf_nan=False)
    except ValueError:
        return text
