"""Reads what people type: `name=value`, JSON, durations, instants. What is wrong is told with an example."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import IO, Annotated, Any

import typer
from pydantic_core import from_json

from turnstile.common.command_line import EXIT_USAGE, CommandFailed
from turnstile.common.domain.durations import parse_duration


def bad_input(message: str) -> CommandFailed:
    """Return the end of a command that was told something wrong."""
    return CommandFailed(message, exit_code=EXIT_USAGE)


def read_assignments(words: Sequence[str], *, where: str) -> dict[str, Any]:
    """Return `name=value` words as an object; a value that is JSON is read as JSON, any other is a string."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise bad_input(f"{where} {word!r}: expected name=value, like customer_id=7")
        if name in found:
            raise bad_input(f"{where} {word!r}: {name} is given twice")
        found[name] = _json_or_text(value)
    return found


def piped_in() -> IO[bytes]:
    """Return stdin; raises CommandFailed where there is none."""
    if sys.stdin is None:
        raise bad_input("stdin is closed; pipe something in, or name a file or text in the place of '-'")
    return sys.stdin.buffer


def can_be_asked() -> bool:
    """Tell whether somebody sits at a keyboard."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_object(text: str, *, where: str) -> dict[str, Any]:
    """Return the JSON object in `text`, or on stdin where that is '-'."""
    source = piped_in().read() if text == "-" else _utf8(text)
    try:
        value = from_json(source, allow_inf_nan=False)
    except ValueError as error:
        raise bad_input(
            f"{where}: not JSON: {error}; expected an object like '{{\"customer_id\": 7}}'"
        ) from None
    if not isinstance(value, dict):
        raise bad_input(f"{where}: not an object; expected one like '{{\"customer_id\": 7}}'")
    return value


def encode(value: object) -> bytes:
    """Return `value` as JSON for the API."""
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def duration(text: str) -> float:
    """Return the seconds of a duration option."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def instant_text(text: str) -> str:
    """Return an instant option as it was given, checked."""
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise typer.BadParameter(
            f"not an instant: {text!r}; expected date, time and zone, like 2026-11-21T07:30:00Z"
        )
    return text


def execution_id(text: str) -> int:
    """Return the id of an execution that was typed."""
    if text.isascii() and text.isdigit() and 0 < (number := int(text[:20])) < 2**63:
        return number
    raise typer.BadParameter(
        f"{text[:40]!r} is not the id of an execution; expected a number like 4711, as 'executor list' shows"
    )


ExecutionIdArgument = Annotated[
    int, typer.Argument(metavar="ID", parser=execution_id, help="Of an execution, like 4711.")
]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_input("the arguments are not text in UTF-8") from None


def _json_or_text(text: str) -> Any:
    try:
        return from_json(_utf8(text), allow_inf_nan=False)
    except ValueError:
        return text
