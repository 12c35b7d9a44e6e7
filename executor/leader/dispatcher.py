"""Messages out: what a turn decided, for sessions; replies, dead letters and probes as AMQP messages. Pure.

In: decisions, and publications of a turn. Out: messages to sessions, and `Outgoing` with address and
properties. A cancel of an old attempt is confirmed, or returned because its session is gone, before the new
attempt is offered: both are in batches of their own, published one after the other. Messages of one call to
one session share an AMQP message, in order, because each AMQP message costs more than what is in it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from pydantic_core import from_json, to_json

from turnstile.common.broker.message import HeaderValue, Outgoing
from turnstile.common.broker.topology import (
    DEAD_LETTER_EXCHANGE,
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTOR,
    EXECUTOR_REQUESTS,
    session_queue,
)
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import envelope, message_id
from turnstile.common.messages import SCHEMA_VERSION
from turnstile.common.worker_protocol import Offer, Offers, Recall, Report, ToSession
from turnstile.common.worker_wire import LEADER_MESSAGES, encode_reports, encode_to_session
from turnstile.executor.dead_letters.envelope import dead_letter, reason_headers
from turnstile.executor.leader.door import LEADER_PROBE, Message
from turnstile.executor.leader.ports import (
    CancelRequest,
    Probe,
    Publication,
    RefusedRequest,
    Request,
    StoredRequest,
)
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.runs import note_size
from turnstile.executor.queue_manager.state import Execution, Queue, State

_OFFERS_BYTES_MAX: Final = 1024 * 1024
"""Parameters in one message; a single offer may be larger."""
_SESSION: Final = "session "
_REPLY: Final = "reply "
_TOGETHER_MAX: Final = 1000
_TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Bounds of what shares an AMQP message to a session."""
_SECRET: Final = re.compile(rb'("secret"\s*:\s*)"(?:[^"\\]|\\.)*"')
_REASONS: Final = {
    Code.UNKNOWN_EXECUTION: "no such execution",
    Code.INVALID_MESSAGE: "the executor cannot process it",
}


def queue_name(queue: Queue) -> str:
    """Return the name of a queue, as users see it: the action, and its key."""
    return f"{queue.action.ref}/{queue.key}" if queue.key else queue.action.ref


def send_offers(
    state: State,
    sessions: Sessions,
    executions: Iterable[Execution],
    requests: Mapping[int, StoredRequest],
    definition_of: Callable[[str], Mapping[str, Any]],
) -> None:
    """Offer executions to their workers, in order: of one queue to one worker together."""
    groups: dict[tuple[str, Queue], list[Offer]] = {}
    for execution in executions:
        if execution.worker is None or execution.grant is None:
            continue
        extra = _extra(state, execution, requests[execution.id], definition_of(execution.action.ref))
        offer = _offer(state, execution, requests[execution.id], extra)
        note_size(execution.action, bytes_of(offer))
        groups.setdefault((execution.worker.id, execution.queue), []).append(offer)
    for (worker_id, queue), offers in groups.items():
        for part in in_parts(offers):
            body = Offers(queue=queue_name(queue), at_once=queue.limit, offers=part)
            sessions.send(worker_id, body)


def in_parts(offers: Iterable[Offer]) -> Iterator[tuple[Offer, ...]]:
    """Divide offers, in order, so that no message is larger than what a broker takes (16 MiB)."""
    part: list[Offer] = []
    part_bytes = 0
    for offer in offers:
        size_bytes = bytes_of(offer)
        if part and part_bytes + size_bytes > _OFFERS_BYTES_MAX:
            yield tuple(part)
            part, part_bytes = [], 0
        part.append(offer)
        part_bytes += size_bytes
    yield tuple(part)


def bytes_of(offer: Offer) -> int:
    """Return the size of what the submitter gave; the rest of an offer is small."""
    metadata = None if offer.extra is None else offer.extra.get("metadata")
    return len(offer.parameters) + (0 if metadata is None else len(metadata))


def _offer(state: State, execution: Execution, request: StoredRequest, extra: Mapping[str, Any]) -> Offer:
    assert execution.grant is not None
    definition = execution.queue.action.definition
    has_ttl = execution.expires_at != float("inf")
    return Offer(
        execution_id=execution.id, grant=execution.grant, attempt=execution.attempt,
        action_ref=definition.ref, parameters=request.parameters, priority=execution.priority,
        expires_in_seconds=max(execution.expires_at - state.now, 0.0) if has_ttl else None,
        timeout_seconds=(
            definition.timeout_seconds if execution.timeout_seconds is None else execution.timeout_seconds
        ),
        extra=extra,
    )  # fmt: skip


def _extra(
    state: State, execution: Execution, request: StoredRequest, definition: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return what else an attempt needs, and only what says something. Metadata stay JSON text."""
    extra: dict[str, Any] = {"waited": round(max(state.now - execution.queued_at, 0.0), 6)}
    runner, entrypoint = definition.get("runner", "python"), definition.get("entrypoint")
    if entrypoint is not None or runner != "python":
        extra["runner"], extra["entrypoint"] = runner, entrypoint
    if execution.queue.key:
        extra["concurrency_key"] = execution.queue.key
    retries_left = execution.action.definition.retry.max_attempts - execution.failures - 1
    if retries_left > 0:
        extra["retries_left"] = retries_left
    for name in ("metadata", "traceparent", "idempotency_key"):
        if (value := getattr(request, name)) is not None:
            extra[name] = value
    return extra


def send_changes(sessions: Sessions, out: Decisions) -> None:
    """Tell workers how many of their queues may run at once, and what they must return."""
    for queue, worker_id in out.limited:
        sessions.send(worker_id, Offers(queue=queue_name(queue), at_once=queue.limit, offers=()))
    for queue, worker_id, barrier in out.recalled:
        sessions.send(worker_id, Recall(queue=queue_name(queue), barrier=barrier))


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
                "singleton": None if request.singleton is None else request.singleton._asdict(),
            }
        case _:
            assert_never(request)
    return to_json({name: value for name, value in fields.items() if value is not None})
