"""AMQP 0-9-1 encoding: packs messages and acknowledgements into frames, and reads properties leniently.

Packing: in go `Outgoing` messages, or delivery tags; out come the bytes of one write. pamqp packs the same
bytes at several times the cost, with an object per frame (a contract test compares both); here the fields of
a message are packed directly, and what many messages share (address, type, `SharedHeaders`) is packed once.
Section numbers are those of the AMQP 0-9-1 specification.

Reading: AMQP lets a publisher send any number as a timestamp and any bytes as a name, the broker passes them
on, and the library closes the connection of the consumer that reads them. One such message at the head of a
queue would block it for every consumer (P9), so an unreadable property is left out or replaced instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from pamqp import decode, encode

from turnstile.common.broker.message import HeaderValue, Outgoing, SharedHeaders

_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_END = b"\xce"
_FRAME_OVERHEAD_BYTES = 8

_frame_start = struct.Struct(">BHI").pack
_method_start = struct.Struct(">HH").pack
_header_start = struct.Struct(">BHIHHQH").pack
_timestamp = struct.Struct(">Q").pack
_settle = struct.Struct(">BHIHHQBB").pack

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


_shared_start = lru_cache(maxsize=64)(_properties_start)


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


_STRICT_SHORT_STRING: Final = decode.short_str
_STRICT_TIMESTAMP: Final = decode.timestamp
_STRICT_TABLE: Final = decode.field_table


def read_properties_leniently() -> None:
    """Make the library read properties with the functions below; calling it again changes nothing."""
    methods: dict[str, Any] = decode.METHODS
    methods["shortstr"] = _lenient_short_string
    methods["timestamp"] = decode.TABLE_MAPPING[b"T"] = _lenient_timestamp
    methods["table"] = _lenient_table


def _lenient_short_string(value: bytes) -> tuple[int, str]:
    """Read a name; where it is not UTF-8, replace each byte that is not ASCII by a question mark."""
    try:
        return _STRICT_SHORT_STRING(value)
    except UnicodeDecodeError:
        # The length stays the same: the name may be sent on, and AMQP bounds its length.
        end = 1 + value[0]
        return end, value[1:end].decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def _lenient_timestamp(value: bytes) -> tuple[int, datetime | None]:
    """Read an instant; None where the number is out of range, like microseconds."""
    try:
        return _STRICT_TIMESTAMP(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


def _lenient_table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Read a header table; an empty one where it cannot be read."""
    try:
        return _STRICT_TABLE(value)
    except (ValueError, RecursionError):
        return 4 + int.from_bytes(value[:4], "big"), {}
