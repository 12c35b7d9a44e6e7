"""Frames: packing equals the packing of the library, and reading accepts invalid properties."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest
from pamqp import body, commands, frame, header
from pamqp.common import FieldTable

from tests.support.brokers import bodies, message, subscribed, take
from turnstile.common.broker import frames
from turnstile.common.broker.frames import pack_acks, pack_nacks, pack_publishes
from turnstile.common.broker.message import HeaderValue, Outgoing

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


MICROSECONDS = 1_790_000_000_000_000
NOT_UTF_8 = b"na\xefve\xff"


def nested(levels: int) -> bytes:
    """A header table whose only value is a list in a list in a list ..."""
    value = b"A\0\0\0\0"
    for _ in range(levels):
        value = b"A" + len(value).to_bytes(4, "big") + value
    return len(b"\1k" + value).to_bytes(4, "big") + b"\1k" + value


def named_in_latin_1(name: bytes) -> bytes:
    value = bytes((len(name),)) + name + b"t\1"
    return len(value).to_bytes(4, "big") + value


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test put bytes on the wire that no library of ours would."""
    packed, tables = frames._short, {"deep": nested(10_000), "latin": named_in_latin_1(NOT_UTF_8)}
    monkeypatch.setattr(
        frames, "_short", lambda t: bytes((len(NOT_UTF_8),)) + NOT_UTF_8 if t == "NOT UTF-8" else packed(t)
    )
    packed_table = frames._header_table
    monkeypatch.setattr(frames, "_header_table", lambda items: tables.get(items[0][0]) or packed_table(items))


@pytest.mark.usefixtures("raw")
async def test_an_invalid_property_does_not_block_the_messages_behind_it(amqp_url: str) -> None:
    odd = [
        replace(message("q", b"microseconds"), timestamp=MICROSECONDS),
        replace(message("q", b"the last instant"), timestamp=2**64 - 1),
        message("q", b"a name that is no text", message_id="NOT UTF-8"),
        replace(message("q", b"headers without an end"), headers={"deep": True}),
        replace(message("q", b"a header that is no text"), headers={"latin": True}),
    ]
    async with subscribed(amqp_url) as (publisher, _, queue):
        await publisher.publish([*odd, message("q", b"plain")])
        deliveries = await take(queue, 6)
        queue.ack(deliveries)
    assert bodies(deliveries) == [*(each.body for each in odd), b"plain"]
    assert not any(each.redelivered for each in deliveries), "the connection was lost over one of them"
    assert [each.timestamp for each in deliveries] == [None] * 6
    assert deliveries[2].message_id == "na?ve?"
    assert [each.headers for each in deliveries[3:5]] == [{}, {}]
