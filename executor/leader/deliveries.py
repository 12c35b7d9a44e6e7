"""Messages of the leader's queues as the inputs of a turn. Pure.

In: one AMQP message. Out: its deliveries, one for each report in it. A message that cannot be read becomes a
delivery too, with a `RefusedRequest`: it is answered and moved to the dead letters behind the commit of a
turn, like every other answer, so an executor that was deposed refuses nothing.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import msgspec

from turnstile.common.broker import delivery as broker
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REQUESTS
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import delivery_key
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
from turnstile.executor.leader.command_rows import RefusalOf
from turnstile.executor.leader.door import check_kept, read_request_message
from turnstile.executor.leader.ports import CancelRequest, Delivery, Probe, RefusedRequest, Request

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
        """Whether the broker has confirmed its dead letters."""


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
