"""Frames: packing equals the packing of the library, and reading accepts invalid properties."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pamqp import body, commands, decode, frame, header
from pamqp.common import FieldTable

from tests.support.brokers import bodies, message, subscribed, take
from turnstile.common.broker import frames
from turnstile.common.broker.frames import instant, pack_acks, pack_nacks, pack_publishes, read_properties
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
def test_a_message_is_packed_as_the_library_packs_it(bare: bool) -> None:
    for size_bytes in (0, 1, 4087, 4088, 4089, 20000):
        message = _outgoing(bare=bare, payload=b"x" * size_bytes)
        packed = pack_publishes(7, [message], frame_bytes_max=4096)
        assert packed == _reference(message, 7, 4088), size_bytes


@pytest.mark.parametrize("value", [True, False, None, 0, 1, 127, 128, -1, 65536, 1 << 40, "", "ü", "x" * 300])
def test_every_kind_of_header_value_is_packed_as_the_library_packs_it(value: HeaderValue) -> None:
    message = _outgoing(headers={"one": 1, "value": value, "yes": True})
    assert pack_publishes(1, [message], frame_bytes_max=0) == _reference(message, 1, 1 << 31)


def test_a_field_too_long_for_the_protocol_is_refused() -> None:
    message = Outgoing(exchange="", routing_key="k" * 256, body=b"", type="t", message_id="m")
    with pytest.raises(ValueError, match="255 bytes, not 256"):
        pack_publishes(1, [message], frame_bytes_max=0)


@pytest.mark.parametrize(
    ("command", "pack"),
    [
        pytest.param(commands.Basic.Ack, pack_acks, id="ack"),
        pytest.param(
            partial(commands.Basic.Nack, requeue=True), partial(pack_nacks, requeue=True), id="nack"
        ),
        pytest.param(
            partial(commands.Basic.Nack, requeue=False), partial(pack_nacks, requeue=False), id="drop"
        ),
    ],
)
def test_answers_to_deliveries_are_packed_as_the_library_packs_them(
    command: Callable[..., Any], pack: Callable[[int, int, list[int]], bytes]
) -> None:
    upto = frame.marshal(command(delivery_tag=5, multiple=True), 3)
    single = frame.marshal(command(delivery_tag=9, multiple=False), 3)
    assert pack(3, 5, [9]) == upto + single
    assert pack(3, 0, [9]) == single


_SHORT = st.text(max_size=60)
_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, width=32),
        st.decimals(0, 1000, places=2),
        st.text(max_size=80),
        st.binary(max_size=20).map(bytearray),
        st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, tz=UTC)),
    ),
    lambda nested: st.lists(nested, max_size=3) | st.dictionaries(_SHORT, nested, max_size=3),
    max_leaves=10,
)
_PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("content_type", "content_encoding", "correlation_id", "reply_to"), _SHORT),
        **dict.fromkeys(("expiration", "message_id", "message_type", "user_id", "app_id"), _SHORT),
        "headers": st.dictionaries(_SHORT, _VALUES, min_size=1, max_size=5),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "timestamp": st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, tz=UTC)),
    },
)


@given(given_properties=_PROPERTIES)
def test_properties_are_read_as_the_library_reads_them(given_properties: dict[str, Any]) -> None:
    sent = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(**given_properties))
    encoded = frame.marshal(sent, 1)
    _, _, expected = frame.unmarshal(encoded)
    assert isinstance(expected, header.ContentHeader)
    theirs = expected.properties
    ours = read_properties(encoded[19:-1])
    assert (ours.content_type, ours.headers) == (theirs.content_type, theirs.headers)
    assert (ours.correlation_id, ours.reply_to) == (theirs.correlation_id, theirs.reply_to)
    assert (ours.message_id, ours.type, ours.app_id) == (
        theirs.message_id,
        theirs.message_type,
        theirs.app_id,
    )
    assert (None if ours.timestamp is None else instant(ours.timestamp)) == theirs.timestamp


@pytest.mark.parametrize(
    "value",
    [
        *(b"t\1", b"t\0", b"b\xff", b"B\xff", b"s\xff\xfe", b"u\xff\xfe", b"I\xff\0\0\0", b"i\xff\0\0\0"),
        *(b"l\xff\0\0\0\0\0\0\0", b"L\xff\0\0\0\0\0\0\0", b"f\x3f\x80\0\0", b"d\x3f\xf0\0\0\0\0\0\0"),
        *(b"D\2\0\0\1\0", b"S\0\0\0\1a", b"S\0\0\0\1\xff", b"A\0\0\0\2t\1", b"F\0\0\0\4\1kt\1"),
        *(b"T\0\0\0\0\x66\0\0\0", b"V", b"\0", b"x\0\0\0\2\0\xff"),
    ],
)
def test_every_type_of_header_value_is_read_as_the_library_reads_it(value: bytes) -> None:
    table = b"\5first" + value + b"\6secondt\1"
    encoded = len(table).to_bytes(4, "big") + table
    assert read_properties(b"\x20\0" + encoded).headers == decode.field_table(encoded)[1]


def test_properties_that_end_too_soon_are_left_out() -> None:
    properties = commands.Basic.Properties(content_type="text", message_id="17", headers={"n": "value"})
    encoded = frame.marshal(header.ContentHeader(body_size=3, properties=properties), 1)[19:-1]
    for cut_bytes in range(1, 30):
        read = read_properties(encoded[:-cut_bytes])
        assert read.content_type in ("text", "text"[: max(len(encoded) - cut_bytes - 3, 0)], None), cut_bytes
        assert read.headers in ({"n": "value"}, {}, None), cut_bytes


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
