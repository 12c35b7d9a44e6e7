"""What runs say while they run, as JSON: `execution.log` and `execution.progress`, for any executor to write.

In and out: values, and the body of one AMQP message, with what one worker has to say of many attempts. Both
may come twice, late, or after the end of their attempt: a piece of a log says where it begins, a progress
when it was reported. The sender's secret shows that it is the worker that the grant went to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Sender
from turnstile.common.worker_wire import InvalidWireMessage, grant_of

EXECUTION_LOG: Final = "execution.log"
EXECUTION_PROGRESS: Final = "execution.progress"

T = TypeVar("T")


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


class _Wire(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What travels. Fields with their default are left out."""


class _Piece(_Wire):
    execution_id: int
    grant: str
    attempt: int
    start: int
    text: str


class _Progress(_Wire):
    execution_id: int
    grant: str
    attempt: int
    at: float
    done: float
    total: float | None = None
    message: str | None = None


class _Log(_Wire):
    worker_id: str
    session: int
    secret: str
    pieces: list[_Piece]


class _AllProgress(_Wire):
    worker_id: str
    session: int
    secret: str
    reports: list[_Progress]


_encode = msgspec.json.Encoder().encode
_LOG: Final = msgspec.json.Decoder(_Log)
_PROGRESS: Final = msgspec.json.Decoder(_AllProgress)


def encode_log(sender: Sender, pieces: Sequence[LogPiece]) -> bytes:
    """Return the body of an `execution.log`."""
    return _encode(
        _Log(
            worker_id=sender.worker_id, session=sender.session, secret=sender.secret,
            pieces=[
                _Piece(
                    execution_id=each.execution_id, grant=str(each.grant), attempt=each.attempt,
                    start=each.start, text=each.text,
                )
                for each in pieces
            ],
        )
    )  # fmt: skip


def decode_log(body: bytes) -> tuple[Sender, list[LogPiece]]:
    """Return sender and pieces of an `execution.log`; raises InvalidWireMessage."""
    found = _decoded(_LOG, body)
    sender = Sender(worker_id=found.worker_id, session=found.session, secret=found.secret)
    return sender, [
        LogPiece(
            execution_id=each.execution_id, grant=grant_of(each.grant), attempt=each.attempt,
            start=each.start, text=each.text,
        )
        for each in found.pieces
    ]  # fmt: skip


def encode_progress(sender: Sender, reports: Sequence[ProgressReport]) -> bytes:
    """Return the body of an `execution.progress`."""
    return _encode(
        _AllProgress(
            worker_id=sender.worker_id, session=sender.session, secret=sender.secret,
            reports=[
                _Progress(
                    execution_id=each.execution_id, grant=str(each.grant), attempt=each.attempt, at=each.at,
                    done=each.done, total=each.total, message=each.message,
                )
                for each in reports
            ],
        )
    )  # fmt: skip


def decode_progress(body: bytes) -> tuple[Sender, list[ProgressReport]]:
    """Return sender and reports of an `execution.progress`; raises InvalidWireMessage."""
    found = _decoded(_PROGRESS, body)
    sender = Sender(worker_id=found.worker_id, session=found.session, secret=found.secret)
    return sender, [
        ProgressReport(
            execution_id=each.execution_id, grant=grant_of(each.grant), attempt=each.attempt, at=each.at,
            done=each.done, total=each.total, message=each.message,
        )
        for each in found.reports
    ]  # fmt: skip


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as invalid:
        raise InvalidWireMessage(str(invalid)) from None
