"""AMQP 0-9-1 encoding: packs messages and acknowledgements into frames, and reads properties leniently.

Packing: in go `Outgoing` messages, or delivery tags; out come the bytes of one write. pamqp packs the same
bytes at several times the cost, with an object per frame (a contract test compares both); here the fields of
a message are packed directly, and what many messages share (address, type, `SharedHeaders`) is packed once.
Section numbers are those of the AMQP 0-9-1 specification.

Reading: in go the properties and the address of a received message, as bytes; out come values, as pamqp reads
them. AMQP lets a publisher send any number as a timestamp and any bytes as a name, and the broker passes them
on. A consumer that lost its connection over such a message at the head of a queue would block all messages
behind it (P9), so an unreadable property is left out or replaced instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Final

from pamqp import encode

from turnstile.common.broker.message import HeaderValue, Outgoing, SharedHeaders

_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_END = b"\xce"
_FRAME_OVERHEAD_BYTES = 8

_frame_start = struct.Struct(">BHI").pack
_method_start = struct.Struct(">HH").pack
_header_start = struct.Struct(">BHIHHQH").pack
_timestamp = struct.Struct(">Q").pack
_settle = struct.Struct(">BHIHHQBB").pack
_read_uint64 = struct.Struct(">Q").unpack_from
_read_decimal = struct.Struct(">BI").unpack_from

# 4.2.6.1: one flag bit for each property present, most significant first.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 13, 1 << 12
_CORRELATION_ID, _REPLY_TO = 1 << 10, 1 << 9
_EXPIRATION, _MESSAGE_ID, _TIMESTAMP, _TYPE, _APP_ID = 1 << 8, 1 << 7, 1 << 6, 1 << 5, 1 << 3


def pack_publishes(channel: int, messages: Iterable[Outgoing], *, frame_bytes_max: int) -> bytes:
    """Pack publish, header and body frames of all messages, in order, bodies split to the agreed frame size.

    Raises ValueError for a short field (routing key, message id, ...) above 255 bytes, and for properties
    that do not fit into one frame (they are never split): the broker would close the connection.
    """
    body_bytes_max = frame_bytes_max - _FRAME_OVERHEAD_BYTES if frame_bytes_max else 1 << 31
    parts: list[bytes] = []
    for message in messages:
        parts.append(_publish_frame(channel, message.exchange, message.routing_key, message.mandatory))
        header = _header_frame(channel, message)
        if frame_bytes_max and len(header) > frame_bytes_max:
            raise ValueError(f"properties of {len(header)} bytes; a frame holds {frame_bytes_max}")
        parts.append(header)
        body = message.body
        if 0 < len(body) <= body_bytes_max:
            parts += (_frame_start(_BODY, channel, len(body)), body, _FRAME_END)
            continue
        for start in range(0, len(body), body_bytes_max):
            piece = body[start : start + body_bytes_max]
            parts += (_frame_start(_BODY, channel, len(piece)), piece, _FRAME_END)
    return b"".join(parts)


def pack_acks(channel: int, upto: int, singles: Sequence[int]) -> bytes:
    """Pack basic.ack: everything outstanding up to tag `upto` (0: nothing), then each single tag."""
    parts = [_settle(_METHOD, channel, 13, 60, 80, upto, 1, 0xCE)] if upto else []
    parts += [_settle(_METHOD, channel, 13, 60, 80, tag, 0, 0xCE) for tag in singles]
    return b"".join(parts)


def pack_nacks(channel: int, upto: int, singles: Sequence[int], *, requeue: bool) -> bytes:
    """Pack basic.nack in the same way: requeued, or else dead-lettered."""
    flags = 2 if requeue else 0
    parts = [_settle(_METHOD, channel, 13, 60, 120, upto, flags | 1, 0xCE)] if upto else []
    parts += [_settle(_METHOD, channel, 13, 60, 120, tag, flags, 0xCE) for tag in singles]
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _publish_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    payload = b"".join(
        (
            _method_start(60, 40),
            b"\0\0",  # reserved since 0-9
            _short(exchange),
            _short(routing_key),
            b"\1" if mandatory else b"\0",
        )
    )
    return _frame_start(_METHOD, channel, len(payload)) + payload + _FRAME_END


def _header_frame(channel: int, message: Outgoing) -> bytes:
    headers = message.headers
    start_of = _shared_start if type(headers) is SharedHeaders else _properties_start
    flags, start = start_of(message.content_type, headers, message.persistent)
    end_flags, end = _properties_end(message.type, message.app_id)
    flags |= end_flags | _MESSAGE_ID
    parts = [start]
    if message.correlation_id is not None:
        flags |= _CORRELATION_ID
        parts.append(_short(message.correlation_id))
    if message.reply_to is not None:
        flags |= _REPLY_TO
        parts.append(_short(message.reply_to))
    if message.expiration_ms is not None:
        flags |= _EXPIRATION
        parts.append(_short(str(message.expiration_ms)))
    parts.append(_short(message.message_id))
    if message.timestamp is not None:
        flags |= _TIMESTAMP
        parts.append(_timestamp(_whole_seconds(message.timestamp)))
    parts.append(end)
    properties = b"".join(parts)
    begin = _header_start(_HEADER, channel, 14 + len(properties), 60, 0, len(message.body), flags)
    return begin + properties + _FRAME_END


def _properties_start(
    content_type: str, headers: Mapping[str, HeaderValue] | None, persistent: bool
) -> tuple[int, bytes]:
    """Pack the properties before `correlation_id`; return their flags and bytes."""
    mode = b"\2" if persistent else b"\1"
    if not headers:
        return _CONTENT_TYPE | _DELIVERY_MODE, _shared_short(content_type) + mode
    table = _header_table(tuple(headers.items()))
    return _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE, _shared_short(content_type) + table + mode


_shared_start = lru_cache(maxsize=1024)(_properties_start)


@lru_cache(maxsize=256)
def _properties_end(message_type: str, app_id: str | None) -> tuple[int, bytes]:
    """Pack the properties after `timestamp`; return their flags and bytes."""
    if app_id is None:
        return _TYPE, _short(message_type)
    return _TYPE | _APP_ID, _short(message_type) + _short(app_id)


def _whole_seconds(timestamp: datetime | int) -> int:
    return timestamp if isinstance(timestamp, int) else int(timestamp.timestamp())


def _short(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 255:
        raise ValueError(f"an AMQP short string holds 255 bytes, not {len(encoded)}: {text[:60]!r}...")
    return bytes((len(encoded),)) + encoded


_shared_short = lru_cache(maxsize=256)(_short)


# typed: True and 1 are equal as keys and different on the wire.
@lru_cache(maxsize=512, typed=True)
def _typed_value(value: HeaderValue) -> bytes:
    return encode.encode_table_value([*value] if isinstance(value, tuple) else value)


def _header_table(items: tuple[tuple[str, HeaderValue], ...]) -> bytes:
    table = b"".join([_shared_short(name) + _typed_value(value) for name, value in sorted(items)])
    return len(table).to_bytes(4, "big") + table


def _read_length(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")


class Properties:
    """The properties of a received message; None: the message does not have it, or it cannot be read."""

    content_type: str | None = None
    headers: Mapping[str, object] | None = None
    delivery_mode: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """As sent; `instant` reads it."""
    type: str | None = None
    app_id: str | None = None


def read_properties(data: bytes) -> Properties:
    """Read flags and property list (4.2.6.1) of a content header; what follows a broken end is left out."""
    properties = Properties()
    fields = properties.__dict__
    try:
        flags, position = int.from_bytes(data[:2], "big"), 2
        for name, read in _present(flags):
            if read is _read_short:
                # Most properties, without another call.
                start, position = position + 1, position + 1 + data[position]
                fields[name] = read_text(data[start:position])
            else:
                position, fields[name] = read(data, position)
    except (IndexError, struct.error):
        pass
    return properties


@lru_cache(maxsize=1024)
def read_address(data: bytes) -> tuple[str, str]:
    """Read exchange and routing key, the last two arguments of `basic.deliver` and `basic.return`."""
    position, exchange = _read_short(data, 0)
    return exchange, _read_short(data, position)[1]


def instant(timestamp: int) -> datetime | None:
    """Return the time of a timestamp; None where the number is out of range, like microseconds.

    A number beyond the year 2106 is read as milliseconds, as pamqp does.
    """
    try:
        return datetime.fromtimestamp(timestamp / 1000 if timestamp > 0xFFFFFFFF else timestamp, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_text(data: bytes) -> str:
    """Read a name; where it is not UTF-8, replace each byte that is not ASCII by a question mark."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # The length stays the same: the name may be sent on, and AMQP bounds its length.
        return data.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def _read_short(data: bytes, position: int) -> tuple[int, str]:
    end = position + 1 + data[position]
    return end, read_text(data[position + 1 : end])


def _read_octet(data: bytes, position: int) -> tuple[int, int]:
    return position + 1, data[position]


def _read_timestamp(data: bytes, position: int) -> tuple[int, int]:
    (value,) = _read_uint64(data, position)
    return position + 8, value


def _read_headers(data: bytes, position: int) -> tuple[int, Mapping[str, object]]:
    end = position + 4 + _read_length(data, position)
    table = data[position + 4 : end]
    return end, _read_shared_table(table) if len(table) <= _SHARED_TABLE_BYTES_MAX else _read_table(table)


def _read_table(data: bytes) -> Mapping[str, object]:
    """Read a header table; an empty one where it cannot be read."""
    try:
        return _table(data, 0, len(data))
    except (ValueError, LookupError, struct.error, RecursionError):
        return {}


_SHARED_TABLE_BYTES_MAX: Final = 64
_read_shared_table = lru_cache(maxsize=256)(_read_table)


def _table(data: bytes, position: int, end: int) -> dict[str, object]:
    table: dict[str, object] = {}
    while position < end:
        name_end = position + 1 + data[position]
        name = data[position + 1 : name_end].decode()
        position, table[name] = _value(data, name_end)
    if position != end:
        raise ValueError("a value reaches beyond the end of its table")
    return table


def _array(data: bytes, position: int, end: int) -> list[object]:
    values: list[object] = []
    while position < end:
        position, value = _value(data, position)
        values.append(value)
    if position != end:
        raise ValueError("a value reaches beyond the end of its array")
    return values


def _value(data: bytes, position: int) -> tuple[int, object]:
    """Read a value and the letter of its type before it, as RabbitMQ assigns them."""
    kind = data[position]
    position += 1
    if (fixed := _FIXED.get(kind)) is not None:
        return position + fixed.size, fixed.unpack_from(data, position)[0]
    if kind in b"V\0":
        return position, None
    if kind == _TIMESTAMP_VALUE:
        return position + 8, instant(_read_uint64(data, position)[0])
    if kind == _DECIMAL_VALUE:
        scale, digits = _read_decimal(data, position)
        return position + 5, Decimal(digits) * Decimal(10) ** -scale
    start = position + 4
    end = start + _read_length(data, position)
    return end, _READ_SIZED[kind](data, start, end)


def _long_text(data: bytes, start: int, end: int) -> str | bytes:
    value = data[start:end]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


_FIXED: Final = {
    ord(kind): struct.Struct(">" + layout) for kind, layout in zip("tbBsuIilLfd", "?bBhHiIqqfd", strict=True)
}
_TIMESTAMP_VALUE: Final = ord("T")
_DECIMAL_VALUE: Final = ord("D")
_READ_SIZED: Final[dict[int, Callable[[bytes, int, int], object]]] = {
    ord("S"): _long_text,
    ord("A"): _array,
    ord("F"): _table,
    ord("x"): lambda data, start, end: bytearray(data[start:end]),
}

_Read = Callable[[bytes, int], tuple[int, object]]

# 4.2.6.1: in the order of their flags.
_PROPERTIES: Final[tuple[tuple[str, _Read], ...]] = (
    ("content_type", _read_short),
    ("content_encoding", _read_short),
    ("headers", _read_headers),
    ("delivery_mode", _read_octet),
    ("priority", _read_octet),
    ("correlation_id", _read_short),
    ("reply_to", _read_short),
    ("expiration", _read_short),
    ("message_id", _read_short),
    ("timestamp", _read_timestamp),
    ("type", _read_short),
    ("user_id", _read_short),
    ("app_id", _read_short),
    ("cluster_id", _read_short),
)


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[str, _Read], ...]:
    return tuple(each for index, each in enumerate(_PROPERTIES) if flags & (1 << (15 - index)))
