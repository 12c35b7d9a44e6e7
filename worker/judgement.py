"""Turns whatever user code does into an outcome: the one place where every exception ends (P3).

In: a value that was returned, or an exception of any kind. Out: `Completed` or `Failed`, small enough and fit
for the database. Used by the in-loop runner and by the child process alike. Next: `worker.runners`.
"""

import re
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from pydantic_core import from_json, to_json

from turnstile.common.documents import read_document, reason_unread
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.errors import PermanentError, TemporaryError
from turnstile.common.domain.outcomes import Completed, Failed, Failure
from turnstile.worker.attempt_log import clipped
from turnstile.worker.parameters import InvalidParameters

_TYPE_CHARS_MAX: Final = 200
_MESSAGE_CHARS_MAX: Final = 4096
# An even number of backslashes, then \u0000: an escaped U+0000, not an escaped backslash before "u0000".
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_FINITE: Final = re.compile(rb"NaN|Infinity")


def failed(
    type_name: str, message: str, *, retryable: bool = True, delay_seconds: float | None = None
) -> Failed:
    """Return a failure whose texts are bounded and storable."""
    failure = Failure(
        type=clipped(type_name, _TYPE_CHARS_MAX),
        message=clipped(message or f"{type_name}, without a message", _MESSAGE_CHARS_MAX),
    )
    return Failed(failure=failure, retryable=retryable, delay_seconds=delay_seconds)


def result_too_large(size_bytes: int, bytes_max: int) -> Failed:
    """Return the failure of a result above the bound."""
    message = (
        f"the result is {size_bytes} bytes, at most {bytes_max} are kept; store it elsewhere, return where"
    )
    return failed("ResultTooLarge", message, retryable=False)


def invalid_result(reason: str) -> Failed:
    """Return the failure of a result that is not plain JSON, or not for everybody to read."""
    return failed("InvalidResult", f"the result cannot be kept as JSON: {reason}", retryable=False)


def judge_value(value: object, result_bytes_max: int) -> Completed | Failed:
    """Judge what a function returned."""
    try:
        result = to_json(value, inf_nan_mode="constants")
    except (ValueError, RecursionError) as error:
        return invalid_result(str(error))
    return _judge_json(result, result_bytes_max)


def judge_text(text: bytes, result_bytes_max: int) -> Completed | Failed:
    """Judge the JSON text that a command printed or a server sent; nothing at all stands for null."""
    if not text.strip():
        return Completed(result_json="null")
    try:
        # Read and written again, so that what is stored is JSON as everybody reads it.
        result = to_json(from_json(text, allow_inf_nan=False), inf_nan_mode="constants")
    except ValueError as error:
        reason = reason_unread(error)
        return invalid_result(f"{reason}; it begins with {text[:60].decode(errors='replace')!r}")
    return _judge_json(result, result_bytes_max)


def judge_exception(error: BaseException, write_log: Callable[[str], None]) -> Failed:
    """Judge what a function raised; the traceback goes to the log."""
    if isinstance(error, InvalidParameters):
        return failed("InvalidParameters", str(error), retryable=False)
    # The first frame is ours. TracebackException survives a __str__ that raises.
    own_frame = error.__traceback__
    frames = own_frame.tb_next if own_frame and own_frame.tb_next else own_frame
    write_log("".join(traceback.TracebackException(type(error), error, frames).format()).rstrip())
    sole = _sole(error)
    message = str(traceback.TracebackException(type(sole), sole, None))
    match sole:
        case PermanentError():
            return failed(type(sole).__name__, message, retryable=False)
        case TemporaryError():
            return failed(type(sole).__name__, message, delay_seconds=_delay(sole.delay, write_log))
        case _:
            return failed(type(sole).__name__, message)


class Judge:
    """A context in which user code runs: `with judge: judge.returned(function())`, then `judge.outcome`."""

    __slots__ = ("_result_bytes_max", "_write_log", "outcome")

    def __init__(self, *, result_bytes_max: int, write_log: Callable[[str], None]) -> None:
        self._result_bytes_max = result_bytes_max
        self._write_log = write_log
        self.outcome: Completed | Failed = failed("NotRun", "the attempt ended before the action was called")

    def __enter__(self) -> Self:
        return self

    def returned(self, value: object) -> None:
        """Judge `value`; serialising it may run user code too, so it happens inside the context."""
        self.outcome = judge_value(value, self._result_bytes_max)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, GeneratorExit):
            return False
        self.outcome = judge_exception(error, self._write_log)
        return True


def _judge_json(result: bytes, result_bytes_max: int) -> Completed | Failed:
    if len(result) > result_bytes_max:
        return result_too_large(len(result), result_bytes_max)
    if _NUL.search(result):
        return invalid_result("it contains the character U+0000, which cannot be stored")
    try:
        read_document(result)
    except ValueError as error:
        return invalid_result(str(error))
    if _NOT_FINITE.search(result):
        try:
            from_json(result, allow_inf_nan=False)
        except ValueError:
            return invalid_result("it contains NaN or Infinity; return null or a string instead")
    return Completed(result_json=result.decode())


def _sole(error: BaseException) -> BaseException:
    """Return what a task group wrapped, where it wrapped only one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _delay(delay: Any, write_log: Callable[[str], None]) -> float | None:
    if delay is None:
        return None
    try:
        return parse_duration(delay)
    except (ValueError, AttributeError) as error:
        write_log(f"the delay of TemporaryError is ignored: {error}")
        return None
