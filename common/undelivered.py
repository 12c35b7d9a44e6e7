"""Counts and logs messages that an address would not take: a dead letter whole, the rest by address.

In: messages that `courier` and `reliable` gave up, and why. Out: a counter by kind, and log lines that name
the queue, or the exchange and key where a listener's queue refused (the broker does not say which one it
was).
"""

import logging
from collections.abc import Callable
from typing import Final, Literal

from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE
from turnstile.common.messages import ACCEPTED, REJECTED
from turnstile.common.telemetry.episodes import Episodes

logger = logging.getLogger(__name__)

Kind = Literal["reply", "event", "dead_letter", "own"]
KINDS: Final[tuple[Kind, ...]] = ("reply", "event", "dead_letter", "own")
"""`event`: the copy for listeners; `own`: for a queue of the protocol, published again by the watchdog."""
_LOGGED_BYTES_MAX: Final = 16 * 1024


class Undelivered:
    """Called with each message that was given up."""

    def __init__(self, count: Callable[[str], None]) -> None:
        """`count` counts one message of a kind."""
        self._count = count
        self._episodes = Episodes(logger, "messages_undelivered")

    def __call__(self, message: Outgoing, reason: str) -> None:
        """Note one message, and why it was given up."""
        kind = _kind_of(message)
        self._count(kind)
        if kind == "dead_letter":
            _log_whole(message, reason)
            return
        address = {"exchange": message.exchange, "routing_key": message.routing_key}
        if not message.exchange:
            address = {"queue": message.routing_key}
        self._episodes.failed(
            f"{kind} {message.exchange} {message.routing_key}",
            **address,
            kind=kind,
            type=message.type,
            correlation_id=message.correlation_id,
            reason=reason,
        )


def _kind_of(message: Outgoing) -> Kind:
    if message.exchange == DEAD_LETTER_EXCHANGE:
        return "dead_letter"
    if message.type in (ACCEPTED, REJECTED):
        return "reply"
    return "own" if message.door is None else "event"


def _log_whole(message: Outgoing, reason: str) -> None:
    body = message.body[:_LOGGED_BYTES_MAX]
    logger.error(
        "dead_letter_undelivered",
        extra={
            "reason": reason,
            "message_id": message.message_id,
            "routing_key": message.routing_key,
            "headers": dict(message.headers or {}),
            "body": body.decode(errors="backslashreplace"),
            "body_bytes": len(message.body),
        },
    )
