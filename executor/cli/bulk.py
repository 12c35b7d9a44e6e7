"""Submits many: JSON Lines in, one answer for each line out, in order.

Lines are sent in lists, one at a time, so that the order of the lines is the order of arrival (P2). A line
that is refused stops no other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from pydantic_core import from_json

from turnstile.common.domain.errors import Code
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.connection import Api, ApiRefused, ApiUnreachable, Json

LIST_MAX: Final = 500
LIST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Half of what the API takes in one list."""
_EXAMPLE: Final = '{"action_ref": "reports.render", "parameters": {"customer_id": 7}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of input: what is to be sent, or why it cannot be."""

    number: int
    body: bytes
    refusal: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a line: an acceptance with an `id`, or a problem with a `code` and a `detail`."""

    line: int
    answer: Mapping[str, Any]

    @property
    def execution_id(self) -> int | None:
        """The execution, where the line was accepted."""
        return self.answer.get("id") if "code" not in self.answer else None


def read_lines(stream: IO[bytes], *, defaults: Mapping[str, Any], key: str | None) -> Iterator[Line]:
    """Yield the lines that are not blank; `defaults` fill in what a line leaves out.

    A line without an idempotency key gets `key` with its number: the same file may be sent again.
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


def send(api: Api, lines: Iterable[Line]) -> Iterator[list[Answered]]:
    """Send the lines and yield the answers, list by list; raises when the API is away or refuses a list."""
    for chunk in _lists(lines):
        good = [line.body for line in chunk if line.refusal is None]
        try:
            answers = iter(api.post("/executions", b"[" + b",".join(good) + b"]")["items"] if good else [])
        except ApiUnreachable as error:
            first, last = chunk[0].number, chunk[-1].number
            raise ApiUnreachable(
                f"{error.message}\nlines {first} to {last}: unknown whether they were taken; lines before "
                "them were answered, lines behind them were not sent; with --idempotency-key all can be sent "
                "again"
            ) from None
        except ApiRefused as refusal:
            first, last = chunk[0].number, chunk[-1].number
            detail = (
                f"{refusal.problem.get('detail', 'no detail')}\nlines {first} to {last}: refused as a whole; "
                "lines before them were answered, lines behind them were not sent"
            )
            raise ApiRefused({**refusal.problem, "detail": detail}) from None
        yield [
            Answered(line=line.number, answer=line.refusal if line.refusal is not None else next(answers))
            for line in chunk
        ]


def _read_line(number: int, text: bytes, defaults: Mapping[str, Any], key: str | None) -> Line:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        return _refused(
            number, Code.INVALID_MESSAGE, f"line: not JSON: {error}; expected one like {_EXAMPLE}"
        )
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
    gathered: list[Line] = []
    gathered_bytes = 0
    for line in lines:
        if gathered and (len(gathered) == LIST_MAX or gathered_bytes + len(line.body) > LIST_BYTES_MAX):
            yield gathered
            gathered, gathered_bytes = [], 0
        gathered.append(line)
        gathered_bytes += len(line.body)
    if gathered:
        yield gathered
