"""Turns what user code returns or raises into an outcome: the only code that catches every exception (P3).

In: a return value, or an exception of any kind. Out: `Completed` or `Failed`, within the size limits and
storable in the database. The in-loop runner and the child process both use it.
"""

import os
import re
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from types import CodeType, TracebackType
from typing import Any, Final, Self

from pydantic_core import from_json, to_json

from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.errors import PermanentError, TemporaryError
from turnstile.common.json_limits import explain_json_error, read_document
from turnstile.worker.code_location import is_of_user, shown_location
from turnstile.worker.core.outcomes import Completed, Failed, Failure
from turnstile.worker.logs import clipped
from turnstile.worker.parameters import InvalidParameters

_TYPE_CHARS_MAX: Final = 200
_MESSAGE_CHARS_MAX: Final = 4096
_SHELL_SIGNALS: Final = 128
"""A shell exits with this plus the number of the signal that its command died of."""
# An even number of backslashes, then \u0000: an escaped U+0000, not an escaped backslash before "u0000".
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_OWN_FOLDER: Final = str(Path(__file__).parent) + os.sep
_NOT_FINITE: Final = re.compile(rb"NaN|Infinity")


def failed(
    type_name: str,
    message: str,
    *,
    retryable: bool = True,
    delay_seconds: float | None = None,
    location: str | None = None,
    by_sigterm: bool = False,
) -> Failed:
    """Return a failure whose texts are bounded and storable."""
    failure = Failure(
        type=clipped(type_name, _TYPE_CHARS_MAX),
        message=clipped(message or f"{type_name} without a message", _MESSAGE_CHARS_MAX),
    )
    return Failed(
        failure=failure,
        retryable=retryable,
        delay_seconds=delay_seconds,
        location=location,
        by_sigterm=by_sigterm,
    )


def is_of_sigterm(exit_code: int) -> bool:
    """Return whether a process died of SIGTERM, or a shell says so of its last command."""
    return exit_code in (-signal.SIGTERM, _SHELL_SIGNALS + signal.SIGTERM)


def result_too_large(size_bytes: int, bytes_max: int) -> Failed:
    """Return the failure of a result above the limit."""
    message = f"the result is {size_bytes} bytes, the limit is {bytes_max}; store it elsewhere, return where"
    return failed("ResultTooLarge", message, retryable=False)


def invalid_result(reason: str) -> Failed:
    """Return the failure of a result that is not plain JSON, or that some JSON readers refuse."""
    return failed("InvalidResult", f"the result cannot be stored as JSON: {reason}", retryable=False)


NOT_RUN: Final = failed("NotRun", "the attempt ended before the action was called")


def outcome_of_value(value: object, result_bytes_max: int) -> Completed | Failed:
    """Return the outcome of a function that returned `value`."""
    try:
        result = to_json(value, inf_nan_mode="constants")
    except (ValueError, RecursionError) as error:
        return invalid_result(str(error))
    return _outcome_of_json(result, result_bytes_max)


def outcome_of_text(text: bytes, result_bytes_max: int) -> Completed | Failed:
    """Return the outcome of a command or a server that sent the JSON `text`; no text means null."""
    if not text.strip():
        return Completed(result_json="null")
    try:
        # Parsed and serialised again, so that what is stored is strict JSON.
        result = to_json(from_json(text, allow_inf_nan=False), inf_nan_mode="constants")
    except ValueError as error:
        reason = explain_json_error(error)
        return invalid_result(f"{reason}; it starts with {text[:60].decode(errors='replace')!r}")
    return _outcome_of_json(result, result_bytes_max)


def outcome_of_exception(error: BaseException, write_log: Callable[[str], None]) -> Failed:
    """Return the outcome of a function that raised `error`; the traceback goes to the log."""
    if isinstance(error, InvalidParameters):
        return failed("InvalidParameters", str(error), retryable=False)
    # The first frames are not the user's.
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code):
        frames = frames.tb_next
    # TracebackException survives a __str__ that raises.
    write_log("".join(traceback.TracebackException(type(error), error, frames).format()).rstrip())
    sole = _sole(error)
    location = location_of(sole)
    message = str(traceback.TracebackException(type(sole), sole, None))
    match sole:
        case PermanentError():
            return failed(type(sole).__name__, message, retryable=False, location=location)
        case TemporaryError():
            delay_seconds = _delay(sole.delay, write_log)
            return failed(type(sole).__name__, message, delay_seconds=delay_seconds, location=location)
        case CalledProcessError(returncode=code):
            return failed(type(sole).__name__, message, location=location, by_sigterm=is_of_sigterm(code))
        case _:
            return failed(type(sole).__name__, message, location=location)


def location_of(error: BaseException) -> str | None:
    """Return where the user's code raised, or called what raised: `reports.py:12 in render`."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    of_user = [each for each in frames if is_of_user(each[0])]
    if not frames:
        return None
    return shown_location(*(of_user or frames)[-1])


class OutcomeCatcher:
    """The context in which user code runs: `with catcher: catcher.returned(f())`, then `catcher.outcome`."""

    __slots__ = ("_result_bytes_max", "_write_log", "outcome")

    def __init__(self, *, result_bytes_max: int, write_log: Callable[[str], None]) -> None:
        self._result_bytes_max = result_bytes_max
        self._write_log = write_log
        self.outcome: Completed | Failed = NOT_RUN

    def __enter__(self) -> Self:
        return self

    def returned(self, value: object) -> None:
        """Note the return value; serialising it may run user code too, so it happens inside the context."""
        self.outcome = outcome_of_value(value, self._result_bytes_max)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        if kind is None or error is None:
            return False
        # Its class is asked, not the exception, which may have methods of the user's.
        if issubclass(kind, GeneratorExit) and (frames is None or frames.tb_next is None):
            # No code below raised it: the worker's own coroutine is closed, and must not go on.
            return False
        try:
            self.outcome = outcome_of_exception(error, self._write_log)
        except BaseException as second:  # noqa: BLE001
            self.outcome = failed(kind.__name__, f"the exception cannot be read: {type(second).__name__}")
        return True


def _outcome_of_json(result: bytes, result_bytes_max: int) -> Completed | Failed:
    if len(result) > result_bytes_max:
        return result_too_large(len(result), result_bytes_max)
    # Looked for plainly first: the expression takes 0.7 s for 10 MB, in which no other thread runs.
    if b"\\u0000" in result and _NUL.search(result):
        return invalid_result("it contains the character U+0000, which cannot be stored")
    try:
        read_document(result)
    except ValueError as error:
        return invalid_result(str(error))
    if _NOT_FINITE.search(result):
        try:
            from_json(result, allow_inf_nan=False)
        except ValueError:
            return invalid_result("it contains NaN or Infinity; return null or a string")
    return Completed(result_json=result.decode())


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN_FOLDER)


def _sole(error: BaseException) -> BaseException:
    """Return the only exception in a group; a group of several is returned as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _delay(delay: Any, write_log: Callable[[str], None]) -> float | None:
    if delay is None:
        return None
    try:
        return parse_duration(delay)
    except (ValueError, AttributeError) as error:
        write_log(f"The delay of TemporaryError is ignored: {error}")
        return None
