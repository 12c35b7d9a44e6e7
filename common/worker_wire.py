"""The messages between leader and worker as JSON: what docs/worker-protocol.md describes.

In and out: values of `worker_protocol`, and the body of one AMQP message. A body carries several messages of
one session or one worker, in order, because each AMQP message costs more than what is in it. Parameters and
results are not parsed: their text is copied. Unknown fields are ignored, so that versions can be mixed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Dismissed,
    EndStatus,
    Heard,
    Heartbeat,
    Held,
    Hello,
    LastProgress,
    LeaderBody,
    Leaving,
    Offer,
    Offers,
    Recall,
    Report,
    ReportBody,
    Sender,
    ToSession,
    Welcome,
)

WORKER_HELLO: Final = "worker.hello"
WORKER_HEARTBEAT: Final = "worker.heartbeat"
WORKER_REPORTS: Final = "worker.reports"
LEADER_MESSAGES: Final = "leader.messages"

T = TypeVar("T")


class InvalidWireMessage(ValueError):
    """A body that does not follow the protocol; the text names the field."""


class Wire(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What travels. Fields with their default are left out."""


# From the leader.


class _Offer(Wire):
    execution_id: int
    grant: str
    attempt: int
    action_ref: str
    parameters: msgspec.Raw
    priority: int = 3
    expires_in: float | None = None
    timeout: float | None = None
    extra: dict[str, Any] | None = None


class _Offers(Wire, tag="execution.scheduled"):
    queue: str
    offers: list[_Offer]
    at_once: int | None = None


class _Cancel(Wire, tag="execution.cancel"):
    execution_id: int
    grant: str
    reason: str
    status: Literal["cancelled", "timeout"] = "cancelled"


class _Recall(Wire, tag="execution.recall"):
    queue: str
    barrier: str


class _Welcome(Wire, tag="worker.welcome"):
    stored: list[dict[str, Any]] = []
    refused: list[str] = []


class _Heard(Wire, tag="worker.heard"):
    heartbeat: int
    committed: int
    is_draining: bool = False


class _Dismissed(Wire, tag="worker.dismissed"):
    pass


_FromLeader: TypeAlias = _Offers | _Cancel | _Recall | _Welcome | _Heard | _Dismissed


class _Numbered(Wire):
    number: int
    body: _FromLeader


class _LeaderMessages(Wire):
    epoch: int
    messages: list[_Numbered]


# From a worker.


class _Held(Wire, tag="worker.held"):
    epoch: int
    grants: list[tuple[int, str]]


_EndStatus: TypeAlias = Literal["completed", "failed", "timeout", "cancelled", "expired"]


class _Ended(Wire, tag="execution.completed"):
    execution_id: int
    grant: str
    status: _EndStatus
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error_type: str | None = None
    error_message: str | None = None
    is_retryable: bool = False
    delay: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    log: str | None = None
    log_start: int = 0
    progress: LastProgress | None = None


class _Started(Wire, tag="execution.started"):
    execution_id: int
    grant: str
    at: float


class _Returned(Wire, tag="execution.returned"):
    execution_id: int
    grant: str
    had_started: bool = False
    reason: str = ""


class _Leaving(Wire, tag="worker.leaving"):
    pass


class _NumberedReport(Wire):
    number: int
    body: _Held | _Ended | _Started | _Returned | _Leaving


class WireSender(Wire):
    """Who sends, in the body of each message of a worker."""

    worker_id: str
    session: int
    secret: str


class _Sender(WireSender):
    epoch_seen: int


class _Reports(_Sender):
    kept_from: int
    reports: list[_NumberedReport]


class _Hello(_Sender):
    name: str
    pools: list[str]
    concurrency: int
    lease: float
    actions: list[str] | None = None
    is_taking: bool = True
    definitions: list[dict[str, Any]] = []
    schedules: list[dict[str, Any]] = []
    not_ready: str | None = None
    about: dict[str, Any] = {}


class _Heartbeat(_Sender):
    number: int
    received: int
    is_taking: bool = True
    not_ready: str | None = None


_encode = msgspec.json.Encoder().encode
_LEADER_MESSAGES: Final = msgspec.json.Decoder(_LeaderMessages)
_REPORTS: Final = msgspec.json.Decoder(_Reports)
_HELLO: Final = msgspec.json.Decoder(_Hello)
_HEARTBEAT: Final = msgspec.json.Decoder(_Heartbeat)


def encode_to_session(messages: Sequence[ToSession]) -> bytes:
    """Return the body of one AMQP message; all messages are of one epoch, and for one session."""
    return _encode(
        _LeaderMessages(
            epoch=messages[0].epoch,
            messages=[_Numbered(number=each.number, body=_to_wire(each.body)) for each in messages],
        )
    )


def decode_to_session(body: bytes) -> list[ToSession]:
    """Return the messages of a body; raises InvalidWireMessage."""
    found = decoded(_LEADER_MESSAGES.decode, body)
    return [
        ToSession(epoch=found.epoch, number=each.number, body=_of_leader(each.body))
        for each in found.messages
    ]


def encode_reports(reports: Sequence[Report]) -> bytes:
    """Return the body of one AMQP message; all reports are of one worker and session.

    `kept_from` and `epoch_seen` of the last one count for all: both only rise.
    """
    last = reports[-1]
    return _encode(
        _Reports(
            worker_id=last.sender.worker_id, session=last.sender.session, secret=last.sender.secret,
            epoch_seen=last.epoch_seen, kept_from=last.kept_from,
            reports=[
                _NumberedReport(number=each.number, body=_report_to_wire(each.body)) for each in reports
            ],
        )
    )  # fmt: skip


def decode_reports(body: bytes) -> list[Report]:
    """Return the reports of a body; raises InvalidWireMessage."""
    found = decoded(_REPORTS.decode, body)
    sender = sender_of(found)
    return [
        Report(
            sender=sender, number=each.number, kept_from=found.kept_from, epoch_seen=found.epoch_seen,
            body=_report_of(each.body),
        )
        for each in found.reports
    ]  # fmt: skip


def encode_heartbeat(message: Hello | Heartbeat) -> bytes:
    """Return the body of a hello or a heartbeat."""
    sender = message.sender
    if isinstance(message, Heartbeat):
        return _encode(
            _Heartbeat(
                **sender_fields(sender), epoch_seen=message.epoch_seen, number=message.number,
                received=message.received, is_taking=message.is_taking, not_ready=message.not_ready,
            )
        )  # fmt: skip
    return _encode(
        _Hello(
            **sender_fields(sender), epoch_seen=message.epoch_seen, name=message.name,
            pools=list(message.pools), actions=None if message.actions is None else list(message.actions),
            concurrency=message.concurrency, lease=message.lease_seconds, is_taking=message.is_taking,
            definitions=[dict(each) for each in message.definitions],
            schedules=[dict(each) for each in message.schedules], not_ready=message.not_ready,
            about=dict(message.about),
        )
    )  # fmt: skip


def decode_hello(body: bytes) -> Hello:
    """Return a hello; raises InvalidWireMessage."""
    found = decoded(_HELLO.decode, body)
    return Hello(
        sender=sender_of(found), name=found.name, pools=tuple(found.pools),
        actions=None if found.actions is None else tuple(found.actions), concurrency=found.concurrency,
        lease_seconds=found.lease, epoch_seen=found.epoch_seen, is_taking=found.is_taking,
        definitions=tuple(found.definitions), schedules=tuple(found.schedules),
        not_ready=found.not_ready, about=found.about,
    )  # fmt: skip


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Return a heartbeat; raises InvalidWireMessage."""
    found = decoded(_HEARTBEAT.decode, body)
    return Heartbeat(
        sender=sender_of(found), number=found.number, epoch_seen=found.epoch_seen, received=found.received,
        is_taking=found.is_taking, not_ready=found.not_ready,
    )  # fmt: skip


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return what is in a body; raises InvalidWireMessage."""
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as invalid:
        raise InvalidWireMessage(str(invalid)) from None


def sender_of(found: WireSender) -> Sender:
    """Return who sent a message."""
    return Sender(worker_id=found.worker_id, session=found.session, secret=found.secret)


def sender_fields(sender: Sender) -> dict[str, Any]:
    """Return the fields of a `WireSender`."""
    return {"worker_id": sender.worker_id, "session": sender.session, "secret": sender.secret}


def grant_of(text: str) -> Grant:
    """Return the grant that a text names; raises InvalidWireMessage."""
    epoch, _, counter = text.partition(".")
    try:
        return Grant(int(epoch), int(counter))
    except ValueError:
        raise InvalidWireMessage(f"grant: {text!r} is not a grant; expected epoch.counter") from None


# Messages of the leader.


def _to_wire(body: LeaderBody) -> _FromLeader:
    match body:
        case Offers():
            offers = [_offer_to_wire(each) for each in body.offers]
            return _Offers(queue=body.queue, at_once=body.at_once, offers=offers)
        case Heard():
            return _Heard(heartbeat=body.heartbeat, committed=body.committed, is_draining=body.is_draining)
        case CancelAttempt():
            status: Literal["cancelled", "timeout"] = (
                "timeout" if body.status is Status.TIMEOUT else "cancelled"
            )
            return _Cancel(
                execution_id=body.execution_id, grant=str(body.grant), reason=body.reason, status=status
            )
        case Recall():
            return _Recall(queue=body.queue, barrier=str(body.barrier))
        case Welcome():
            return _Welcome(stored=[dict(each) for each in body.stored], refused=list(body.refused))
        case Dismissed():
            return _Dismissed()


def _offer_to_wire(each: Offer) -> _Offer:
    return _Offer(
        execution_id=each.execution_id, grant=str(each.grant), attempt=each.attempt,
        action_ref=each.action_ref, parameters=msgspec.Raw(each.parameters), priority=each.priority,
        expires_in=each.expires_in_seconds, timeout=each.timeout_seconds,
        extra=None if each.extra is None else {n: _raw(value) for n, value in each.extra.items()},
    )  # fmt: skip


def _raw(value: object) -> object:
    """Let the text of a document be copied."""
    return msgspec.Raw(value) if isinstance(value, bytes) else value


def _of_leader(body: _FromLeader) -> LeaderBody:
    match body:
        case _Offers():
            offers = tuple(_offer_of(each) for each in body.offers)
            return Offers(queue=body.queue, at_once=body.at_once, offers=offers)
        case _Heard():
            return Heard(heartbeat=body.heartbeat, committed=body.committed, is_draining=body.is_draining)
        case _Cancel():
            status: Literal[Status.CANCELLED, Status.TIMEOUT] = (
                Status.TIMEOUT if body.status == "timeout" else Status.CANCELLED
            )
            grant = grant_of(body.grant)
            return CancelAttempt(
                execution_id=body.execution_id, grant=grant, reason=body.reason, status=status
            )
        case _Recall():
            return Recall(queue=body.queue, barrier=grant_of(body.barrier))
        case _Welcome():
            return Welcome(stored=tuple(body.stored), refused=tuple(body.refused))
        case _Dismissed():
            return Dismissed()


def _offer_of(each: _Offer) -> Offer:
    return Offer(
        execution_id=each.execution_id, grant=grant_of(each.grant), attempt=each.attempt,
        action_ref=each.action_ref, parameters=bytes(each.parameters), priority=each.priority,
        expires_in_seconds=each.expires_in, timeout_seconds=each.timeout, extra=each.extra,
    )  # fmt: skip


# Reports of workers.

_ENDS: Final[Mapping[_EndStatus, EndStatus]] = {
    "completed": Status.COMPLETED,
    "failed": Status.FAILED,
    "timeout": Status.TIMEOUT,
    "cancelled": Status.CANCELLED,
    "expired": Status.EXPIRED,
}
_END_NAMES: Final = {status: name for name, status in _ENDS.items()}


def _report_to_wire(body: ReportBody) -> _Held | _Ended | _Started | _Returned | _Leaving:
    match body:
        case AttemptEnded():
            error_type, error_message = (None, None) if body.error is None else body.error
            return _Ended(
                execution_id=body.execution_id, grant=str(body.grant), status=_END_NAMES[body.status],
                result=msgspec.UNSET if body.result is None else msgspec.Raw(body.result),
                error_type=error_type, error_message=error_message, is_retryable=body.is_retryable,
                delay=body.delay_seconds, started_at=body.started_at, completed_at=body.completed_at,
                log=body.log, log_start=body.log_start, progress=body.progress,
            )  # fmt: skip
        case AttemptStarted():
            return _Started(execution_id=body.execution_id, grant=str(body.grant), at=body.at)
        case AttemptReturned():
            return _Returned(
                execution_id=body.execution_id, grant=str(body.grant), had_started=body.had_started,
                reason=body.reason,
            )  # fmt: skip
        case Held():
            return _Held(epoch=body.epoch, grants=[(each, str(grant)) for each, grant in body.grants])
        case Leaving():
            return _Leaving()


def _report_of(body: _Held | _Ended | _Started | _Returned | _Leaving) -> ReportBody:
    match body:
        case _Ended():
            error = None if body.error_type is None else (body.error_type, body.error_message or "")
            return AttemptEnded(
                execution_id=body.execution_id, grant=grant_of(body.grant), status=_ENDS[body.status],
                result=None if body.result is msgspec.UNSET else bytes(body.result), error=error,
                is_retryable=body.is_retryable, delay_seconds=body.delay, started_at=body.started_at,
                completed_at=body.completed_at, log=body.log, log_start=body.log_start,
                progress=body.progress,
            )  # fmt: skip
        case _Started():
            return AttemptStarted(execution_id=body.execution_id, grant=grant_of(body.grant), at=body.at)
        case _Returned():
            return AttemptReturned(
                execution_id=body.execution_id, grant=grant_of(body.grant), had_started=body.had_started,
                reason=body.reason,
            )  # fmt: skip
        case _Held():
            grants = tuple((each, grant_of(grant)) for each, grant in body.grants)
            return Held(epoch=body.epoch, grants=grants)
        case _Leaving():
            return Leaving()
