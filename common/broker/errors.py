"""How an exchange with the broker fails.

BrokerUnavailable          no answer, or the connection broke: the outcome is unknown, so repeat
├── NotSent                there was no usable connection: nothing reached the broker
├── NotConfirmed           the connection is open, and the broker does not confirm
└── DeclarationRefused     it exists with other properties, or belongs to another connection
ChannelLost                the channel closed before the broker answered
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar

from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from turnstile.common.urls import network_remedy, with_tls_hint

if TYPE_CHECKING:
    from yarl import URL

T = TypeVar("T")
BLOCKED: Final = (
    "the broker blocks publishing because of a memory or disk alarm: free memory or disk on its server; "
    "'rabbitmq-diagnostics alarms' names the alarm"
)
_SETTING: Final = "TURNSTILE_AMQP_URL"
_LOGIN_REFUSED: Final = re.compile(r"^ACCESS_REFUSED - Login was refused")
_NO_VHOST: Final = re.compile(r"^NOT_ALLOWED - vhost (.+) not found")
_VHOST_REFUSED: Final = re.compile(r"^NOT_ALLOWED - access to vhost '(.*)' refused for user '(.*)'$")
_AT_A_LIMIT: Final = re.compile(r"limit \(\d+\) is reached|reached the maximum allowed .*limit of \(\d+\)")
_VHOST_DOWN: Final = re.compile(r"vhost '(.+)' is down$")
_RIGHT_MISSING: Final = re.compile(r"ACCESS_REFUSED - ((\w+ )?access to .+ refused for user '.*?')")
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (configured )?max size \d+")
_OTHER_PROPERTIES: Final = re.compile(r"^PRECONDITION_FAILED - inequivalent arg")
_CLOSED: Final = "the connection closed"
_NOT_AMQP: Final = ("Server connection unexpectedly closed", "Server connection reset", _CLOSED)
"""What ends a handshake that the other side does not answer."""
_CLIENT_CERTIFICATE: Final = f"certfile and keyfile in {_SETTING}"
_TLS_REFUSALS: Final = {
    "ALERT_CERTIFICATE_REQUIRED": f"it requires a client certificate: name one with {_CLIENT_CERTIFICATE}",
    "ALERT_HANDSHAKE_FAILURE": "its log says why; if it requires a client certificate, name one with "
    + _CLIENT_CERTIFICATE,
    "ALERT_UNKNOWN_CA": "it does not know the authority of the client certificate: "
    f"correct {_CLIENT_CERTIFICATE}, or add the authority to the server",
    "ALERT_CERTIFICATE_EXPIRED": f"the client certificate has expired: renew {_CLIENT_CERTIFICATE}",
    "WRONG_VERSION_NUMBER": f"that port has no TLS: name the one with TLS (5671) in {_SETTING}, or use amqp://",
}
"""What the library's text contains where the server ends a TLS handshake, and what that means."""


class BrokerUnavailable(Exception):
    """The broker did not answer in time or the connection broke: the outcome is unknown, so repeat."""


class NotSent(BrokerUnavailable):
    """There was no usable connection: nothing reached the broker."""


class NotConfirmed(BrokerUnavailable):
    """The connection is open and the broker does not confirm: one of the queues may never answer."""


class DeclarationRefused(BrokerUnavailable):
    """The broker refuses the declaration: it exists with other properties, or belongs to others."""


class ChannelLost(Exception):
    """The channel closed before the broker answered: the outcome is unknown."""


def with_remedy(reason: str, url: URL) -> str:
    """Return why the broker at `url` could not be reached, with what to correct where that is known."""
    if _LOGIN_REFUSED.search(reason) is not None:
        return (
            f"the broker refuses the user {url.user!r} or its password: correct {_SETTING}, "
            "or create the accounts with 'executor setup-permissions'"
        )
    if (unknown := _NO_VHOST.search(reason)) is not None:
        vhost = unknown[1]
        return (
            f"the broker has no vhost {vhost!r}: create it with 'rabbitmqctl add_vhost {quote(vhost)}', "
            f"or correct {_SETTING}"
        )
    if (refused := _VHOST_REFUSED.search(reason)) is not None:
        vhost, user = refused.groups()
        return (
            f"the user {user!r} has no access to the vhost {vhost!r}: grant it with "
            f"'executor setup-permissions', or correct {_SETTING}"
        )
    if _AT_A_LIMIT.search(reason) is not None:
        return (
            f"the broker accepts no more, by a limit of its configuration: {reason}; raise that limit "
            "('rabbitmqctl set_vhost_limits' or 'set_user_limits', or 'connection_max' or 'channel_max' of "
            "the node), or close what is not needed"
        )
    if (down := _VHOST_DOWN.search(reason)) is not None:
        return f"{reason}: its log says why; start it with 'rabbitmqctl restart_vhost -p {quote(down[1])}'"
    for alert, meaning in _TLS_REFUSALS.items():
        if alert in reason:
            return f"the server refuses the TLS connection: {meaning}"
    if reason.startswith(_NOT_AMQP):
        certificate = ", or the server refuses the client certificate: its log says why"
        return (
            f"{reason}; if this lasts, {_SETTING} names a port that is not that of AMQP (5672, with TLS 5671)"
            f"{certificate if url.scheme == 'amqps' else ''}"
        )
    return network_remedy(reason, server="RabbitMQ", setting=_SETTING) or with_tls_hint(
        reason, authority=f"cafile in {_SETTING}"
    )


def explained(reason: str) -> str:
    """Return why the broker refused a method or a message, with the remedy where that is known."""
    if (missing := _RIGHT_MISSING.search(reason)) is not None:
        return (
            f"the broker refuses an account its right: {missing[1]}; 'executor setup-permissions' grants "
            "configure, write and read as Turnstile needs them"
        )
    if (large := _TOO_LARGE.search(reason)) is not None:
        return (
            f"the broker refuses a message: {large[0]}; raise 'max_message_size' in its rabbitmq.conf to "
            "16777216 at least, and restart it: nothing is lost, and what waits is sent then"
        )
    return reason


def declaration_with_remedy(reason: str) -> str:
    """Return why the broker refuses a declaration, with what to correct where that is known."""
    if _OTHER_PROPERTIES.search(reason) is not None:
        return (
            f"{reason}: set TURNSTILE_QUEUE_TYPE to the type of the queues; or, once they are empty, stop "
            "all services, delete it with 'rabbitmqctl delete_queue', and start the services"
        )
    return reason


async def answered(request: Awaitable[T], timeout_seconds: float) -> T:
    """Await a call of the AMQP library; raise BrokerUnavailable for every way in which it can fail.

    The library cancels its callers when a connection closes, so a cancellation that this task did not
    receive itself is a lost connection. And the library may answer a real cancellation with an error or a
    result: it is raised as the cancellation that it is.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await request
    except asyncio.CancelledError as error:
        if task.cancelling() > cancelled_before:
            raise
        raise BrokerUnavailable(_CLOSED) from error
    except TimeoutError as error:
        _raise_cancellation(task, cancelled_before)
        raise BrokerUnavailable(f"the broker did not answer within {timeout_seconds:g} s") from error
    except (ChannelLost, *CONNECTION_EXCEPTIONS) as error:
        _raise_cancellation(task, cancelled_before)
        # The library reads frames by iteration: the end of the connection ends that.
        reason = _CLOSED if isinstance(error, StopAsyncIteration) else str(error) or repr(error)
        raise BrokerUnavailable(explained(reason)) from error
    except Exception as error:
        # The library rejects with a bare `Exception` what waits on a connection that closes without a reason.
        if type(error) is not Exception:
            raise
        _raise_cancellation(task, cancelled_before)
        raise BrokerUnavailable(_CLOSED) from error
    _raise_cancellation(task, cancelled_before)
    return answer


def _raise_cancellation(task: asyncio.Task[object], cancelled_before: int) -> None:
    if task.cancelling() > cancelled_before:
        raise asyncio.CancelledError
