"""Our packed frames are, byte for byte, what the library's own packing makes of the same message."""

from datetime import UTC, datetime
from typing import cast

import pytest
from pamqp import body, commands, frame, header
from pamqp.common import FieldTable

from turnstile.common.broker.delivery import HeaderValue, Outgoing
from turnstile.common.broker.frames import pack_acks, pack_nacks, pack_publishes

_AT = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def _outgoing(
    *, bare: bool = False, payload: bytes = b"{}", headers: dict[str, HeaderValue] | None = None
) -> Outgoing:
    if bare:
        return Outgoing(exchange="", routing_key="q", body=payload, type="t", message_id="m", mandatory=False)
    return Outgoing(
        exchange="executions",
        routing_key="execution.scheduled.größer",
        body=payload,
        type="execution.scheduled",
        message_id="5d3c",
        correlation_id="17",
        reply_to="amq.rabbitmq.reply-to",
        app_id="executor",
        headers=headers or {"traceparent": "00-ab-cd-01", "schema_version": 1},
        timestamp=_AT,
        persistent=False,
        expiration_ms=1000,
    )


def _reference(message: Outgoing, channel: int, piece_bytes_max: int) -> bytes:
    table = cast(FieldTable, dict(message.headers)) if message.headers else None
    properties = commands.Basic.Properties(
        content_type=message.content_type,
        headers=table,
        delivery_mode=2 if message.persistent else 1,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        message_id=message.message_id,
        timestamp=message.timestamp if isinstance(message.timestamp, datetime) else None,
        message_type=message.type,
        app_id=message.app_id,
    )
    publish = commands.Basic.Publish(
        exchange=message.exchange, routing_key=message.routing_key, mandatory=message.mandatory
    )
    parts = [
        frame.marshal(publish, channel),
        frame.marshal(header.ContentHeader(body_size=len(message.body), properties=properties), channel),
    ]
    parts += [
        frame.marshal(body.ContentBody(message.body[start : start + piece_bytes_max]), channel)
        for start in range(0, len(message.body), piece_bytes_max)
    ]
    return b"".join(parts)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("size_bytes", [0, 1, 4087, 4088, 4089, 20000])
def test_a_message_is_packed_as_the_library_packs_it(bare: bool, size_bytes: int) -> None:
    message = _outgoing(bare=bare, payload=b"x" * size_bytes)
    assert pack_publishes(7, [message], frame_bytes_max=4096) == _reference(message, 7, 4088)


@pytest.mark.parametrize("value", [True, False, None, 0, 1, 127, 128, -1, 65536, 1 << 40, "", "ü", "x" * 300])
def test_every_kind_of_header_value_is_packed_as_the_library_packs_it(value: HeaderValue) -> None:
    message = _outgoing(headers={"one": 1, "value": value, "yes": True})
    assert pack_publishes(1, [message], frame_bytes_max=0) == _reference(message, 1, 1 << 31)


def test_a_batch_is_the_messages_one_after_the_other() -> None:
    messages = [_outgoing(payload=b"1"), _outgoing(bare=True), _outgoing(payload=b"3")]
    singly = b"".join(pack_publishes(2, [each], frame_bytes_max=0) for each in messages)
    assert pack_publishes(2, messages, frame_bytes_max=0) == singly


def test_a_field_too_long_for_the_protocol_is_refused() -> None:
    message = Outgoing(exchange="", routing_key="k" * 256, body=b"", type="t", message_id="m")
    with pytest.raises(ValueError, match="255 bytes, not 256"):
        pack_publishes(1, [message], frame_bytes_max=0)


def test_acknowledgements_are_packed_as_the_library_packs_them() -> None:
    upto = commands.Basic.Ack(delivery_tag=5, multiple=True)
    single = commands.Basic.Ack(delivery_tag=9, multiple=False)
    assert pack_acks(3, 5, [9]) == frame.marshal(upto, 3) + frame.marshal(single, 3)
    assert pack_acks(3, 0, [9]) == frame.marshal(single, 3)


@pytest.mark.parametrize("requeue", [True, False])
def test_rejections_are_packed_as_the_library_packs_them(requeue: bool) -> None:
    upto = commands.Basic.Nack(delivery_tag=5, multiple=True, requeue=requeue)
    single = commands.Basic.Nack(delivery_tag=9, multiple=False, requeue=requeue)
    packed = pack_nacks(3, 5, [9], requeue=requeue)
    assert packed == frame.marshal(upto, 3) + frame.marshal(single, 3)
