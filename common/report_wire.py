"""What runs say while they run, as JSON: `execution.log` and `execution.progress`, for any executor to write.

In and out: values, and the body of one AMQP message, with what one worker has to say of many attempts. Both
may come twice, late, or after the end of their attempt: a piece of a log says where it begins, a progress
when it was reported. The sender's secret shows that it is the worker that the grant went to.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Sender
from turnstile.common.worker_wire import Wire, WireSender, decoded, grant_of, sender_fields, sender_of

EXECUTION_LOG: Final = "execution.log"
EXECUTION_PROGRESS: Final = "execution.progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A part of the log of an attempt, which is the concatenation of its pieces."""

    execution_id: int
    grant: Grant
    attempt: int
    start: int
    """How many characters of the log precede it."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """How far an attempt says that it has come; the report with the latest `at` counts."""

    execution_id: int
    grant: Grant
    attempt: int
    at: float
    """Seconds since 1970, by the worker's clock."""
    done: float
    total: float | None = None
    message: str | None = None


class _Piece(Wire):
    execution_id: int
    grant: str
    attempt: int
    start: int
    text: str


class _Progress(Wire):
    execution_id: int
    grant: str
    attempt: int
    at: float
    done: float
    total: float | None = None
    message: str | None = None


class _Log(WireSender):
    pieces: list[_Piece]


class _AllProgress(WireSender):
    reports: list[_Progress]


_encode = msgspec.json.Encoder().encode
_LOG: Final = msgspec.json.Decoder(_Log)
_PROGRESS: Final = msgspec.json.Decoder(_AllProgress)


def encode_log(sender: Sender, pieces: Sequence[LogPiece]) -> bytes:
    """Return the body of an `execution.log`."""
    return _encode(_Log(**sender_fields(sender), pieces=[_Piece(**_to_wire(each)) for each in pieces]))


def decode_log(body: bytes) -> tuple[Sender, list[LogPiece]]:
    """Return sender and pieces of an `execution.log`; raises InvalidWireMessage."""
    found = decoded(_LOG.decode, body)
    return sender_of(found), [LogPiece(**_of_wire(each)) for each in found.pieces]


def encode_progress(sender: Sender, reports: Sequence[ProgressReport]) -> bytes:
    """Return the body of an `execution.progress`."""
    return _encode(
        _AllProgress(**sender_fields(sender), reports=[_Progress(**_to_wire(each)) for each in reports])
    )


def decode_progress(body: bytes) -> tuple[Sender, list[ProgressReport]]:
    """Return sender and reports of an `execution.progress`; raises InvalidWireMessage."""
    found = decoded(_PROGRESS.decode, body)
    return sender_of(found), [ProgressReport(**_of_wire(each)) for each in found.reports]


def _to_wire(report: LogPiece | ProgressReport) -> dict[str, Any]:
    return asdict(report) | {"grant": str(report.grant)}


def _of_wire(found: _Piece | _Progress) -> dict[str, Any]:
    return msgspec.structs.asdict(found) | {"grant": grant_of(found.grant)}
