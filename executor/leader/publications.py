"""What the leader publishes, as AMQP messages. Pure.

In: publications and events of a turn. Out: `Outgoing` with address and properties. Messages of one call to
one session share an AMQP message, in order, because each AMQP message costs more than what is in it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, assert_never

from pydantic_core import from_json, to_json

from turnstile.common.broker.message import HeaderValue, Outgoing, SharedHeaders
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_COMPLETED,
    EXECUTION_REQUESTED,
    EXECUTIONS,
    EXECUTOR,
    EXECUTOR_REQUESTS,
    completed_key,
    session_queue,
)
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import envelope, message_id
from turnstile.common.messages import SCHEMA_VERSION
from turnstile.common.worker_protocol import Offers, Report, ToSession
from turnstile.common.worker_wire import LEADER_MESSAGES, encode_reports, encode_to_session
from turnstile.executor.dead_letters.envelope import dead_letter, reason_headers
from turnstile.executor.leader.deliveries import LEADER_PROBE, Message
from turnstile.executor.leader.dispatcher import bytes_of
from turnstile.executor.leader.ports import CancelRequest, Probe, Publication, RefusedRequest, Request

_SESSION: Final = "session "
_REPLY: Final = "reply "
_TOGETHER_MAX: Final = 1000
_TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Bounds of what shares an AMQP message to a session."""
_SECRET: Final = re.compile(rb'("secret"\s*:\s*)"(?:[^"\\]|\\.)*"')


def is_for_client(publication: Publication) -> bool:
    """Return whether it is a reply or a dead letter: nothing in a turn waits for it."""
    return publication.to.startswith(_REPLY) or publication.to == "dead letters"


def own_messages(publications: Sequence[Publication], probe_secret: str) -> list[tuple[Outgoing, list[int]]]:
    """Return the messages to sessions and to the leader's own queues, with the indices of what is in each."""
    groups: dict[tuple[str, int], list[_Together]] = {}
    found: list[tuple[Outgoing, list[int]]] = []
    for index, each in enumerate(publications):
        body = each.body
        if isinstance(body, ToSession):
            parts = groups.setdefault((each.to, body.epoch), [])
            size_bytes = _bytes_of(body)
            if not parts or not parts[-1].has_room(size_bytes):
                parts.append(_Together())
            parts[-1].add(body, index, size_bytes)
        elif isinstance(body, Probe):
            found.append((_probe_message(each.to, body, probe_secret), [index]))
    for (to, _), parts in groups.items():
        worker_id, _, session = to.removeprefix(_SESSION).rpartition(" ")
        queue = session_queue(worker_id, int(session))
        found += [(_session_message(queue, part.messages), part.indices) for part in parts]
    return found


class _Together:
    """Messages to one session that share an AMQP message."""

    __slots__ = ("indices", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[ToSession] = []
        self.indices: list[int] = []
        self.size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        # A message without offers has a bounded size.
        is_small = not size_bytes or self.size_bytes + size_bytes <= _TOGETHER_BYTES_MAX
        return is_small and len(self.messages) < _TOGETHER_MAX

    def add(self, message: ToSession, index: int, size_bytes: int) -> None:
        self.messages.append(message)
        self.indices.append(index)
        self.size_bytes += size_bytes


def _bytes_of(message: ToSession) -> int:
    body = message.body
    return sum(map(bytes_of, body.offers)) if isinstance(body, Offers) else 0


def _session_message(queue: str, messages: Sequence[ToSession]) -> Outgoing:
    return envelope(
        encode_to_session(messages),
        message_type=LEADER_MESSAGES,
        exchange="",
        routing_key=queue,
        app_id="executor",
        # The queue is gone with the worker's connection, and so with the broker.
        persistent=False,
    )


def _probe_message(queue: str, probe: Probe, secret: str) -> Outgoing:
    return envelope(
        to_json({"epoch": probe.epoch, "number": probe.number, "secret": secret}),
        message_type=LEADER_PROBE,
        exchange=EXECUTOR,
        routing_key=queue,
        app_id="executor",
    )


def client_message(publication: Publication) -> Outgoing | None:
    """Return a reply or a dead letter; None where the broker itself has to move the message there."""
    if publication.to.startswith(_REPLY):
        assert isinstance(publication.body, Mapping)
        return _reply(publication.to.removeprefix(_REPLY), publication.body)
    return _letter(publication)


def _reply(queue: str, answer: Mapping[str, Any]) -> Outgoing:
    """Not mandatory: the reply queue may be deleted already."""
    body = {name: value for name, value in answer.items() if name not in ("type", "correlation_id")}
    execution_id = answer.get("execution_id")
    return envelope(
        to_json(body),
        message_type=answer["type"],
        exchange="",
        routing_key=queue,
        app_id="executor",
        correlation_id=answer["correlation_id"] or (None if execution_id is None else str(execution_id)),
        mandatory=False,
    )


def _letter(publication: Publication) -> Outgoing | None:
    reason = publication.body
    assert isinstance(reason, Mapping)
    code = Code(reason["x-error-code"])
    text = reason.get("x-error") or _REASONS.get(code, str(code))
    delivery = publication.of
    if delivery is None:
        return _letter_without_message(reason, code, text)
    assert isinstance(delivery.tag, Message)
    raw = delivery.tag.delivery
    if not raw.kept:
        return None
    letter = dead_letter(raw, code, text)
    if isinstance(delivery.body, Report):
        # Only this report: the others of its message are processed.
        sender = replace(delivery.body.sender, secret="")
        return replace(letter, body=encode_reports([replace(delivery.body, sender=sender)]))
    if delivery.queue != EXECUTOR_REQUESTS:
        return replace(letter, body=_SECRET.sub(rb'\1""', letter.body))
    return letter


def _letter_without_message(reason: Mapping[str, Any], code: Code, text: str) -> Outgoing:
    """Return the dead letter of a submission, or of a cancel whose message was acknowledged before."""
    request = reason["request"]
    is_cancel = isinstance(request, CancelRequest)
    sent = from_json(request.properties) if is_cancel and request.properties is not None else {}
    kind = EXECUTION_CANCEL_REQUESTED if is_cancel else EXECUTION_REQUESTED
    headers: dict[str, HeaderValue] = {
        "schema_version": SCHEMA_VERSION,
        **sent.get("headers", {}),
        **reason_headers(code, text, kind),
    }
    if isinstance(request, Request) and request.traceparent is not None:
        headers["traceparent"] = request.traceparent
    return Outgoing(
        exchange=DEAD_LETTER_EXCHANGE,
        routing_key=kind,
        body=_body_of(request),
        type=kind,
        message_id=sent.get("message_id") or reason.get("message_id") or message_id(),
        correlation_id=sent.get("correlation_id"),
        reply_to=sent.get("reply_to"),
        app_id=sent.get("app_id") or ("executor" if is_cancel else "database"),
        headers=headers,
        timestamp=datetime.fromisoformat(sent["timestamp"]) if "timestamp" in sent else datetime.now(UTC),
    )


def _body_of(request: Request | CancelRequest | RefusedRequest) -> bytes:
    """Return a request as its sender would write it."""
    fields: dict[str, Any]
    match request:
        case RefusedRequest():
            return request.body or b""
        case CancelRequest():
            fields = {
                "execution_id": request.execution_id,
                "idempotency_key": request.idempotency_key,
                "reason": request.reason or None,
            }
        case Request():
            run_at = None if request.run_at is None else datetime.fromtimestamp(request.run_at, UTC)
            fields = {
                "action_ref": request.action_ref,
                "parameters": from_json(request.parameters),
                "metadata": None if request.metadata is None else from_json(request.metadata),
                "idempotency_key": request.idempotency_key,
                "concurrency_key": request.concurrency_key,
                "priority": request.priority,
                "run_at": run_at,
                "delay": request.delay_seconds,
                "ttl": request.ttl_seconds,
                "timeout": request.timeout_seconds,
                "callback_url": request.callback_url,
            }
        case _:
            assert_never(request)
    return to_json({name: value for name, value in fields.items() if value is not None})


def completed_event(event: Mapping[str, Any], *, result_bytes_max: int) -> Outgoing:
    """Return `execution.completed` for listeners: as today, and with a second routing key.

    The second key, with the action and the status, is in the header BCC of this one message: the broker
    delivers it once to a queue that is bound to both, and shows the header to no consumer.
    """
    action_ref, status, execution_id = event["action_ref"], event["status"], event["execution_id"]
    result, error = event["result"], event["error"]
    if result is not None:
        result = result.encode()
    body = (
        b'{"execution_id":%d,"action_id":%b,"action_ref":%b,"status":"%b","result":%b,"error":%b,'
        b'"attempt":%d,"completed_at":%b}'
    ) % (
        execution_id,
        to_json(event.get("action_id")),
        to_json(action_ref),
        status.encode(),
        b"null" if result is None or len(result) > result_bytes_max else result,
        b"null" if error is None else to_json(error),
        event["attempt"],
        to_json(datetime.fromtimestamp(event["completed_at"], UTC)),
    )
    message = envelope(
        body,
        message_type=EXECUTION_COMPLETED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_COMPLETED,
        app_id="executor",
        correlation_id=str(execution_id),
    )
    traceparent = event.get("traceparent")
    headers = _headers_of(action_ref, status)
    message.headers = headers if traceparent is None else {**headers, "traceparent": traceparent}
    return message


@lru_cache(maxsize=1024)
def _headers_of(action_ref: str, status: str) -> SharedHeaders:
    return SharedHeaders(schema_version=SCHEMA_VERSION, BCC=(completed_key(action_ref, status),))


_REASONS: Final = {
    Code.UNKNOWN_EXECUTION: "no such execution",
    Code.INVALID_MESSAGE: "the executor cannot process it",
}
