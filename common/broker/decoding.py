"""Read what strangers put into a message's properties, however odd, instead of losing the connection over it.

In: the bytes of properties. Out: values; what cannot be one is left out, or read as far as it goes. AMQP lets
a publisher send any number as a timestamp and any bytes as a name, the broker passes them on, and the
library ends the connection of whoever reads them: one such message would stand at the head of its queue and
keep every consumer away from the rest (P9). Next: `connection` asks for it before it connects.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pamqp import decode

_STRICT_SHORT_STRING: Final = decode.short_str
_STRICT_TIMESTAMP: Final = decode.timestamp
_STRICT_TABLE: Final = decode.field_table


def read_leniently() -> None:
    """Have the library read properties by the functions below. Saying it again changes nothing."""
    methods: dict[str, Any] = decode.METHODS
    methods["shortstr"] = short_string
    methods["timestamp"] = decode.TABLE_MAPPING[b"T"] = timestamp
    methods["table"] = table


def short_string(value: bytes) -> tuple[int, str]:
    """Read a name; where it is not UTF-8 a question mark stands for each byte that is not ASCII."""
    try:
        return _STRICT_SHORT_STRING(value)
    except UnicodeDecodeError:
        # As long as it was: it may have to be sent on, and AMQP bounds its length.
        end = 1 + value[0]
        return end, value[1:end].decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def timestamp(value: bytes) -> tuple[int, datetime | None]:
    """Read an instant; None where the number is none, like microseconds."""
    try:
        return _STRICT_TIMESTAMP(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


def table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Read a header table; an empty one where it cannot be read at all."""
    try:
        return _STRICT_TABLE(value)
    except (ValueError, RecursionError):
        return 4 + int.from_bytes(value[:4], "big"), {}
