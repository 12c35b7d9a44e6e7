"""Options and arguments, and how they are read: JSON, durations, instants, names, limits, filters.

In: the words of a command line. Out: values, or an error that shows a valid example. The shell completes
names of actions, workers, resources and pools from the API.
"""

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import IO, Annotated, Any, Final, NamedTuple, TypeVar

import typer
from pydantic_core import from_json

from turnstile.common.cli import CommandFailed, bad_input, environment_name
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.states import Status
from turnstile.common.fields import (
    UNITS_MAX,
    check_pool,
    check_ref,
    check_resource,
    check_schedule,
    parse_priority,
)

T = TypeVar("T")
_COMPLETION_SECONDS: Final = 1.0
_COMPLETIONS_MAX: Final = 1000
_ID_MAX: Final = 2**63 - 1
_STDIN: Final = "-"


class Null(Enum):
    """What "none" on a command line is: typer reads None as "not given"."""

    NULL = None


class Kind(NamedTuple):
    """What an option or an argument holds: its name in the help, its parser, and its completion."""

    metavar: str
    parser: Callable[[str], Any] | None = None
    completion: Callable[[str], list[str]] | None = None


def option(kind: Kind | str, help_text: str, *names: str, **more: Any) -> Any:
    """Return an option of this kind; a kind of plain text is its name in the help."""
    metavar, parser, completion = Kind(kind) if isinstance(kind, str) else kind
    return typer.Option(
        *names, metavar=metavar, parser=parser, autocompletion=completion, help=help_text, **more
    )


def argument(kind: Kind | str, help_text: str) -> Any:
    """Return an argument of this kind."""
    metavar, parser, completion = Kind(kind) if isinstance(kind, str) else kind
    return typer.Argument(metavar=metavar, parser=parser, autocompletion=completion, help=help_text)


def given(**options: object) -> dict[str, Any]:
    """Return the options that were given, as the API takes them."""
    return {
        name: None if value is Null.NULL else value for name, value in options.items() if value is not None
    }


def encode(value: object) -> bytes:
    """Return `value` as JSON for the API."""
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def piped_in() -> IO[bytes]:
    """Return stdin; raises CommandFailed where it is closed."""
    if sys.stdin is None:
        raise bad_input("stdin is closed; redirect it, or give a file or a value in place of '-'")
    return sys.stdin.buffer


def opened(path: str, *, hint: str = "") -> contextlib.AbstractContextManager[IO[bytes]]:
    """Return a file, or stdin for '-'; raises CommandFailed, with `hint`, where it cannot be opened."""
    if path == _STDIN:
        return contextlib.nullcontext(piped_in())
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror}{hint}") from None


def is_interactive() -> bool:
    """Return whether stdin is a terminal, so that a question can be answered."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_parameters(text: str) -> dict[str, Any]:
    """Return the JSON object of the option `--parameters`, or that on stdin where `text` is '-'."""
    source = piped_in().read() if text == _STDIN else _utf8(text)
    example = "expected an object like '{\"customer_id\": 7}'"
    try:
        value = from_json(source, allow_inf_nan=False)
    except ValueError as error:
        raise bad_input(f"--parameters: invalid JSON: {error}; {example}") from None
    if not isinstance(value, dict):
        raise bad_input(f"--parameters: not a JSON object; {example}")
    return value


def read_assignments(words: Sequence[str], *, where: str) -> dict[str, Any]:
    """Return `name=value` words as an object; a value that is valid JSON is parsed, any other is a string."""
    return {name: _json_or_text(value) for name, value in _assignments(words, where).items()}


def _option_of(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for options and arguments: what it refuses is a usage error."""

    @functools.wraps(parse)
    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def or_none(parse: Callable[[str], T]) -> Callable[[str], T | Null]:
    """Return the parser of what `parse` reads, or of the word "none"."""
    return lambda text: Null.NULL if text == "none" else parse(text)


duration: Final = _option_of(parse_duration)
"""Returns the seconds of a duration option."""


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


def number_of(what: str, least: int, most: int, *, like: str) -> Callable[[str], int]:
    """Return the parser of a whole number; `like` ends the sentence "expected a number "."""

    def parse(text: str) -> int:
        number = whole_number(text)
        if number is None or not least <= number <= most:
            raise typer.BadParameter(f"invalid {what} {text[:40]!r}; expected a number {like}")
        return number

    return parse


def whole_number(text: str) -> int | None:
    """Return the number, or None if the text is none."""
    if not (text.isascii() and text.isdigit()):
        return None
    # Twenty digits are enough to see that a number is too large; int() of thousands is slow.
    return int(text.lstrip("0")[:20] or "0")


def one_of(what: str, known: Sequence[str]) -> Kind:
    """Return the kind of an option for one of these words, or for several when it is repeated."""

    def parse(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(
                f"unknown {what} {text[:40]!r}; expected one of {', '.join(known)}; for several, repeat the "
                "option"
            )
        return text

    return Kind(
        what.upper(), parse, lambda incomplete: [each for each in known if each.startswith(incomplete)]
    )


def _completion(path: str, field: str, **query: str) -> Callable[[str], list[str]]:
    """Return what completes names from a list; none if the API does not respond within a second."""
    return lambda incomplete: [name for name in _names(path, field, query) if name.startswith(incomplete)]


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


DURATION: Final = Kind("DURATION", duration)
INSTANT: Final = Kind("INSTANT", instant_text)
PRIORITY: Final = Kind("1-5", _option_of(parse_priority))
LIMIT: Final = Kind(
    "NUMBER|none", or_none(number_of("limit", 0, UNITS_MAX, like=f"from 0 to {UNITS_MAX}, like 4, or 'none'"))
)
REF: Final = Kind("REF", _option_of(check_ref), _completion("/actions", "ref"))
WORKER: Final = Kind("ID", None, _completion("/workers", "id", state="live"))
EXECUTION: Final = Kind(
    "ID", number_of("execution id", 1, _ID_MAX, like="like 4711, as 'executor list' shows")
)
TOKEN: Final = Kind("ID", number_of("token id", 1, _ID_MAX, like="like 7, as 'executor tokens list' shows"))

REF_ARGUMENT: Final = argument(REF, "Action, like reports.render.")
RESOURCE_ARGUMENT: Final = argument(
    Kind("NAME", _option_of(check_resource), _completion("/resources", "name")), "Resource, like autocad."
)
POOL_ARGUMENT: Final = argument(
    Kind("NAME", _option_of(check_pool), _completion("/pools", "name")), "Pool, like default."
)
SCHEDULE_ARGUMENT: Final = argument(
    Kind("NAME", _option_of(check_schedule), _completion("/schedules", "name")),
    "Schedule, like nightly-report.",
)
RefArgument = Annotated[str, REF_ARGUMENT]
ExecutionIdArgument = Annotated[int, argument(EXECUTION, "Execution id, like 4711.")]


def states_option(noun: str, states: Sequence[str], what: str = "state") -> Any:
    """Return the option that selects items in one of these states."""
    return option(one_of(what, states), f"{noun}; repeatable. One of {', '.join(states)}.")


def _filter_options(
    *,
    action: Annotated[str | None, option(REF, "Executions of this action.")] = None,
    status: Annotated[
        list[str] | None, states_option("Executions with this status", [*Status], "status")
    ] = None,
    concurrency_key: Annotated[str | None, option("KEY", "Executions with this concurrency key.")] = None,
    priority: Annotated[int | None, option(PRIORITY, "Executions with this priority.")] = None,
    created_after: Annotated[
        str | None, option(INSTANT, "Executions created after this instant, like 2026-11-21T07:30:00Z.")
    ] = None,
    created_before: Annotated[str | None, option(INSTANT, "Executions created before this instant.")] = None,
    completed_after: Annotated[str | None, option(INSTANT, "Executions ended after this instant.")] = None,
    completed_before: Annotated[str | None, option(INSTANT, "Executions ended before this instant.")] = None,
    error: Annotated[
        str | None, option("TEXT", "Executions with this text in their error; case is ignored.")
    ] = None,
    worker: Annotated[str | None, option(WORKER, "Executions of this worker.")] = None,
    metadata: Annotated[
        list[str] | None, option("NAME=VALUE", "Executions with this metadata; repeatable, all must match.")
    ] = None,
) -> dict[str, Any]:
    """Return the filter as the API takes it, without options that were not given."""
    return given(
        action_ref=action,
        status=status or None,
        concurrency_key=concurrency_key,
        priority=priority,
        created_after=created_after,
        created_before=created_before,
        completed_after=completed_after,
        completed_before=completed_before,
        error=error,
        worker_id=worker,
        metadata=_assignments(metadata or (), "--metadata") or None,
    )


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
