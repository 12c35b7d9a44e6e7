"""Wraps the body of every message that the services and the client send.

In: a body and its address. Out: an `Outgoing` with the properties that all our messages carry; `app_id` is
the sender.
"""

import itertools
import os
import time
from random import getrandbits
from typing import Final

from pydantic import BaseModel

from turnstile.common.broker.message import HeaderValue, Outgoing, SharedHeaders
from turnstile.common.messages import SCHEMA_VERSION, AppId

_HEADERS: Final = SharedHeaders(schema_version=SCHEMA_VERSION)


def envelope(
    body: bytes | BaseModel,
    *,
    message_type: str,
    exchange: str,
    routing_key: str,
    app_id: AppId,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    traceparent: str | None = None,
    persistent: bool = True,
    mandatory: bool = True,
    direct_address: tuple[str, str] | None = None,
) -> Outgoing:
    """Wrap a body in the properties that all our messages carry."""
    headers: dict[str, HeaderValue] = _HEADERS
    if traceparent is not None:
        headers = {**_HEADERS, "traceparent": traceparent}
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=body if isinstance(body, bytes) else body.model_dump_json().encode(),
        type=message_type,
        message_id=message_id(),
        timestamp=int(time.time()),
        app_id=app_id,
        correlation_id=correlation_id,
        reply_to=reply_to,
        headers=headers,
        persistent=persistent,
        mandatory=mandatory,
        direct_address=direct_address,
    )


class _MessageIds:
    """UUIDs of version 4 that share the random first half of this process; the second half is counted up."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw another first half."""
        first = f"{getrandbits(64) & ~0xF000 | 0x4000:016x}"
        variant_and_node = 0x8000_0000_0000_0000 | getrandbits(62)
        self._start = f"{first[:8]}-{first[8:12]}-{first[12:]}-{variant_and_node >> 48:04x}-"
        self._ends = itertools.count(variant_and_node & 0xFFFF_FFFF_FFFF)

    def next(self) -> str:
        """Return an id that no other message has."""
        return f"{self._start}{next(self._ends) & 0xFFFF_FFFF_FFFF:012x}"


_message_ids: Final = _MessageIds()
# A child process would continue the numbers of its parent.
os.register_at_fork(after_in_child=_message_ids.renew)

message_id: Final = _message_ids.next
"""Return a new UUID: unique but not secret, made without a system call."""
