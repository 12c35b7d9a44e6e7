"""What comes in, as values for a turn: messages of the leader's queues, commands as rows of the inbox. Pure.

In: one AMQP message or row, and what checks parameters. Out: the deliveries of a message, one for each report
in it, or a command. All ways of submitting are read by the same rules, so they refuse alike, and equal
requests have equal hashes. Of a request is checked what it alone decides, and whether parameters fit their
schema, while they are parsed; whether the action exists, and its queue, key and priority, are decided in the
turn. A message that cannot be read becomes a delivery too, with a `RefusedRequest`: it is answered, or moved
to the dead letters, behind the commit of a turn, like every other answer, so an executor that was deposed
refuses nothing. What HTTP and the command line store in the inbox they have checked.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, assert_never
from uuid import UUID

import msgspec
from msgspec import structs
from pydantic_core import from_json, to_json

from turnstile.common.broker import delivery as broker
from turnstile.common.broker.topology import (
    EXECUTION_CANCEL_REQUESTED,
    EXECUTION_REQUESTED,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REQUESTS,
)
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.messages import CancelRequested
from turnstile.common.requests import (
    PARAMETERS_BYTES_MAX,
    CheckedRequest,
    check_schema_version,
    delivery_key,
    read_json,
    read_model,
    read_request,
    read_requested_body,
    read_traceparent,
    request_bytes_max,
    request_hash,
)
from turnstile.common.worker_protocol import FromWorker
from turnstile.common.worker_wire import (
    WORKER_HEARTBEAT,
    WORKER_HELLO,
    WORKER_REPORTS,
    InvalidWireMessage,
    decode_heartbeat,
    decode_hello,
    decode_reports,
)
from turnstile.executor.dead_letters.envelope import kept_properties
from turnstile.executor.leader.ports import (
    CancelExecutions,
    CancelRequest,
    Command,
    DefinitionCommand,
    Delivery,
    InboxRow,
    Probe,
    RefusedRequest,
    Request,
    Singleton,
)

if TYPE_CHECKING:
    import asyncpg

_CANCEL_BYTES_MAX: Final = 16 * 1024
_KEYS: Final = frozenset({EXECUTION_REQUESTED, EXECUTION_CANCEL_REQUESTED, EXECUTOR_REQUESTS})
_DOCUMENTS: Final = ("parameters", "metadata")
_NOT_STORED: Final = frozenset({*_DOCUMENTS, "is_submission"})
_DEFAULTS: Final = {
    each.name: each.default
    for each in structs.fields(Request)
    if each.name not in ("action_ref", "request_hash")
}
_TAG_BYTES: Final = 12
LEADER_PROBE: Final = "leader.probe"
_WORKER_ID_BYTES_MAX: Final = 200
"""The name of a session's queue has at most 255 bytes."""
_EXPECTED: Final = {
    EXECUTOR_COMPLETIONS: WORKER_REPORTS,
    EXECUTOR_HEARTBEATS: f"{WORKER_HELLO} or {WORKER_HEARTBEAT}",
}
_FOREIGN_PROBE: Final = Probe(epoch=0, number=0)
"""Of another leader, or forged: it matches nothing."""

Body = Request | CancelRequest | FromWorker | Probe | RefusedRequest

RefusalOf: TypeAlias = Callable[[str, Any], tuple[Code, str] | None]
"""Returns why parameters do not fit the schemas of an action, or None."""


class Message:
    """One AMQP message that was taken: acknowledged when all deliveries in it are, behind its answers."""

    __slots__ = ("delivery", "left", "letters", "replies", "source")

    def __init__(self, delivery: broker.Delivery, source: object) -> None:
        self.delivery = delivery
        self.source = source
        """The connection that it came on."""
        self.left = 0
        """How many of its deliveries are not acknowledged."""
        self.replies: list[asyncio.Future[bool]] = []
        self.letters: list[asyncio.Future[bool]] = []
        """Whether the broker has confirmed its dead letters. False: the broker moves the message there."""


class Reader:
    """Reads the messages of all queues of the leader."""

    def __init__(self, refusal_of: RefusalOf, *, parameters_bytes_max: int, probe_secret: str) -> None:
        """Accept probes only with `probe_secret`: the broker account of a worker can publish one too."""
        self._refusal_of = refusal_of
        self._parameters_bytes_max = parameters_bytes_max
        self._probe_secret = probe_secret

    def deliveries(self, queue: str, message: Message) -> list[Delivery]:
        """Return what is in a message, at least one delivery."""
        raw = message.delivery
        try:
            bodies: Sequence[Body]
            if queue == EXECUTOR_REQUESTS:
                return [self._of_request(message)]
            bodies = self._of_worker(queue, raw)
        except (Refusal, InvalidWireMessage) as invalid:
            code = invalid.code if isinstance(invalid, Refusal) else Code.INVALID_MESSAGE
            bodies = [RefusedRequest(code=code, message=str(invalid), body=None)]
        message.left = len(bodies)
        first = int.from_bytes(_digest(raw))
        is_redelivered = raw.redelivered
        return [
            Delivery(queue, message, body, UUID(int=first ^ index), None, None, is_redelivered)
            for index, body in enumerate(bodies)
        ]

    def _of_request(self, message: Message) -> Delivery:
        raw = message.delivery
        body: Request | CancelRequest | RefusedRequest
        try:
            body = read_request_message(
                raw, self._refusal_of, parameters_bytes_max=self._parameters_bytes_max
            )
        except Refusal as refusal:
            body = RefusedRequest(code=refusal.code, message=refusal.message, body=None)
        message.left = 1
        if isinstance(body, CancelRequest):
            # It may wait for its execution, and is acknowledged before.
            body = replace(body, properties=kept_properties(raw))
        if isinstance(body, Request):
            key = delivery_key(raw.message_id or "", body.request_hash)
            identifies = bool(raw.message_id) and body.idempotency_key is None
        else:
            key, identifies = UUID(bytes=_digest(raw)), False
        return Delivery(
            EXECUTOR_REQUESTS, message, body, key, raw.reply_to or None,
            raw.correlation_id or raw.message_id, raw.redelivered, key_identifies=identifies,
        )  # fmt: skip

    def _of_worker(self, queue: str, raw: broker.Delivery) -> Sequence[FromWorker | Probe]:
        check_kept(raw)
        kind = raw.type
        found: Sequence[FromWorker]
        if kind == WORKER_REPORTS and queue == EXECUTOR_COMPLETIONS:
            found = decode_reports(raw.body)
        elif kind == WORKER_HEARTBEAT and queue == EXECUTOR_HEARTBEATS:
            found = [decode_heartbeat(raw.body)]
        elif kind == WORKER_HELLO and queue == EXECUTOR_HEARTBEATS:
            found = [decode_hello(raw.body)]
        elif kind == LEADER_PROBE:
            return [self._of_probe(raw.body)]
        else:
            raise Refusal(
                Code.INVALID_MESSAGE,
                f"type: {(kind or '')[:60]!r} is not accepted here; expected {_EXPECTED[queue]}",
            )
        if not found:
            raise Refusal(Code.INVALID_MESSAGE, "reports: expected at least one")
        worker_id = found[0].sender.worker_id
        if not 0 < len(worker_id.encode()) <= _WORKER_ID_BYTES_MAX:
            raise Refusal(Code.INVALID_MESSAGE, f"worker_id: expected 1 to {_WORKER_ID_BYTES_MAX} bytes")
        return found

    def _of_probe(self, body: bytes) -> Probe:
        try:
            probe: Any = msgspec.json.decode(body)
            if probe["secret"] == self._probe_secret:
                return Probe(epoch=probe["epoch"], number=probe["number"])
        except (msgspec.DecodeError, KeyError, TypeError):
            pass
        return _FOREIGN_PROBE


def _digest(raw: broker.Delivery) -> bytes:
    content = hashlib.blake2b((raw.message_id or "").encode() + b"\0", digest_size=16)
    content.update(raw.body)
    return content.digest()


def read_request_message(
    message: broker.Delivery, refusal_of: RefusalOf, *, parameters_bytes_max: int
) -> Request | CancelRequest:
    """Return the request in a message; raises Refusal. Without a type, its routing key decides what it is."""
    check_kept(message)
    check_schema_version(message.headers)
    if message.routing_key not in _KEYS:
        # A sender without the right to use these keys can add them in the header CC to a key that it may use.
        raise Refusal(
            Code.FORBIDDEN,
            f"routing key: {message.routing_key[:60]!r} is not accepted here; publish with "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    kind = message.type or message.routing_key
    if kind == EXECUTION_CANCEL_REQUESTED:
        return _read_cancel(message.body)
    if kind != EXECUTION_REQUESTED:
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"type: {kind[:60]!r} is not accepted here; expected "
            f"{EXECUTION_REQUESTED} or {EXECUTION_CANCEL_REQUESTED}",
        )
    requested = read_requested_body(message.body, parameters_bytes_max=parameters_bytes_max)
    request = request_of(requested, traceparent=read_traceparent(message.headers))
    refusal = refusal_of(requested.action_ref, requested.parameters)
    return request if refusal is None else structs.replace(request, refusal=refusal)


def check_kept(message: broker.Delivery) -> None:
    """Raise Refusal for a message that was too large to be kept in memory."""
    if not message.kept:
        raise Refusal(
            Code.TOO_LARGE, f"message: {message.size_bytes} bytes; send a reference to the data instead"
        )


def _read_cancel(body: bytes) -> CancelRequest:
    cancel = read_model(CancelRequested, read_json(body, bytes_max=_CANCEL_BYTES_MAX))
    if (cancel.execution_id is None) == (cancel.idempotency_key is None):
        raise Refusal(Code.INVALID_MESSAGE, "execution_id, idempotency_key: give exactly one of them")
    return CancelRequest(
        execution_id=cancel.execution_id,
        idempotency_key=cancel.idempotency_key,
        reason=cancel.reason or "",
    )


class CommandColumns(NamedTuple):
    """A command as its row of the inbox, beside its id. JSON is text."""

    kind: str
    is_bulk: bool
    body: str
    parameters: str | None = None
    metadata: str | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.body) + len(self.parameters or "") + len(self.metadata or "")


def columns_of(command: Command) -> CommandColumns:
    """Return a command as a row. A RefusedRequest is none: only `turnstile.submit` stores what is unread."""
    match command:
        case Request():
            body = {
                name: value
                for name in command.__struct_fields__
                if name not in _NOT_STORED
                and (value := getattr(command, name)) != _DEFAULTS.get(name, _DEFAULTS)
            }
            body["request_hash"] = str(command.request_hash)
            metadata = None if command.metadata is None else command.metadata.decode()
            return CommandColumns("request", False, _text(body), command.parameters.decode(), metadata)
        case CancelRequest():
            return CommandColumns("cancel", False, _text(_given(command)))
        case CancelExecutions():
            return CommandColumns("cancels", len(command.execution_ids) > 1, _text(_given(command)))
        case DefinitionCommand():
            return CommandColumns("definition", False, _text(_given(command)))
        case RefusedRequest():
            raise AssertionError("was never a command")
    assert_never(command)


def _given(command: CancelRequest | CancelExecutions | DefinitionCommand) -> Mapping[str, Any]:
    return {each.name: getattr(command, each.name) for each in fields(command)}


def _text(value: object) -> str:
    return to_json(value).decode()


def command_of(
    row: "asyncpg.Record",
    parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
    refusal_of: RefusalOf | None = None,
) -> InboxRow:
    """Return a row of the inbox as a command. `refusal_of` checks its parameters."""
    body: Command
    if row["kind"] == "submission":
        body = _submission(row, parameters_bytes_max, refusal_of)
    else:
        given: dict[str, Any] = json.loads(row["body"])
        match row["kind"]:
            case "request":
                given["request_hash"] = UUID(given["request_hash"])
                if "refusal" in given:
                    given["refusal"] = Code(given["refusal"][0]), given["refusal"][1]
                if "singleton" in given:
                    given["singleton"] = Singleton(*given["singleton"])
                given |= {name: row[name].encode() for name in _DOCUMENTS if row[name] is not None}
                body = _checked(Request(**given), refusal_of)
            case "cancel":
                body = CancelRequest(**given)
            case "cancels":
                body = CancelExecutions(**given | {"execution_ids": tuple(given["execution_ids"])})
            case _:
                body = DefinitionCommand(**given)
    command_id = UUID(bytes=row["command_id"].bytes)
    return InboxRow(id=row["id"], command_id=command_id, body=body, cancelled=row["cancelled"])


def _checked(request: Request, refusal_of: RefusalOf | None) -> Request:
    """Check the parameters of a request, but not of a retry that repeats them: they were accepted before."""
    if refusal_of is None or request.refusal is not None or request.repeats_accepted:
        return request
    refusal = refusal_of(request.action_ref, from_json(request.parameters))
    return request if refusal is None else structs.replace(request, refusal=refusal)


def _submission(
    row: "asyncpg.Record", parameters_bytes_max: int, refusal_of: RefusalOf | None
) -> Request | RefusedRequest:
    """Read what `turnstile.submit` stored like a message from outside."""
    bytes_max = request_bytes_max(parameters_bytes_max)
    if row["body"] is None:
        message = f"body: more than the {bytes_max} bytes that are accepted; send a reference"
        return RefusedRequest(code=Code.TOO_LARGE, message=message, body=None)
    parameters, metadata = row["parameters"].encode(), row["metadata"].encode()
    try:
        given = json.loads(row["body"])
        traceparent = read_traceparent({"traceparent": given.pop("traceparent", None)})
        given["parameters"] = read_json(parameters, bytes_max=bytes_max)
        given["metadata"] = read_json(metadata, bytes_max=bytes_max)
        requested = read_request(given, parameters_bytes_max=parameters_bytes_max)
    except Refusal as refusal:
        whole = b'{"request": %s, "parameters": %s, "metadata": %s}' % (
            row["body"].encode(), parameters, metadata,
        )  # fmt: skip
        return RefusedRequest(code=refusal.code, message=refusal.message, body=whole)
    request = request_of(requested, traceparent=traceparent, is_submission=True)
    unfit = None if refusal_of is None else refusal_of(requested.action_ref, requested.parameters)
    return request if unfit is None else structs.replace(request, refusal=unfit)


def request_of(
    requested: CheckedRequest,
    *,
    traceparent: str | None = None,
    may_be_urgent: bool = False,
    is_submission: bool = False,
) -> Request:
    """Return a checked request from outside as a command."""
    return Request(
        action_ref=requested.action_ref,
        parameters=requested.parameters_text,
        request_hash=request_hash(requested),
        concurrency_key=requested.concurrency_key,
        priority=requested.priority,
        may_be_urgent=may_be_urgent,
        run_at=None if requested.run_at is None else requested.run_at.timestamp(),
        delay_seconds=requested.delay,
        ttl_seconds=requested.ttl,
        timeout_seconds=requested.timeout,
        idempotency_key=requested.idempotency_key,
        callback_url=requested.callback_url,
        singleton=None if requested.singleton is None else Singleton(**requested.singleton.model_dump()),
        metadata=requested.metadata_text if requested.metadata else None,
        traceparent=traceparent,
        is_submission=is_submission,
    )


def definition_tag(body: Mapping[str, Any]) -> str:
    """Return the `ETag` of a stored definition: it changes with each field, and is that of its row."""
    content = json.dumps(_plain(body), sort_keys=True).encode()
    return f'"{hashlib.blake2b(content, digest_size=_TAG_BYTES).hexdigest()}"'


def _plain(value: Any) -> Any:
    """Return JSON as the database returns it: 5.0 and 5, or 1e22 and its digits, are one number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
