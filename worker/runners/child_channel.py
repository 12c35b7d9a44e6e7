"""The child's end of the socket to its worker: blocking frames, and the question "was I asked to stop?".

In: the inherited descriptor. Out: messages of `child_protocol`. Next: `child_main` is its only user.
"""

import os
import socket
import threading
from typing import Final

from turnstile.worker.runners.child_protocol import (
    HEADER,
    FromChild,
    StopAsked,
    ToChild,
    from_child,
    read_to_child,
)

_PEEK_BYTES: Final = 16 * 1024


class WorkerGone(Exception):
    """The worker closed the socket, or died."""


class ChildChannel:
    """Sends and receives frames."""

    def __init__(self, fd: int) -> None:
        # Programs that the actions start must not hold the socket open.
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._sending = threading.Lock()

    def receive(self) -> ToChild:
        """Wait for the next message; raises WorkerGone."""
        (length,) = HEADER.unpack(self._exactly(HEADER.size))
        return read_to_child(self._exactly(length))

    def send(self, message: FromChild) -> None:
        """Send `message` whole, also when several threads log at once; raises WorkerGone."""
        with self._sending:
            try:
                self._socket.sendall(from_child(message))
            except OSError as error:
                raise WorkerGone from error

    def stop_reason(self) -> str | None:
        """Return why the running action is to stop, or None.

        While an action runs, the only thing that the worker writes is `StopAsked`. It is looked at, not
        taken: a child that was asked to stop serves nothing more.
        """
        try:
            waiting = self._socket.recv(_PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if len(waiting) < HEADER.size:
            return "the worker is gone"
        (length,) = HEADER.unpack_from(waiting)
        body = waiting[HEADER.size : HEADER.size + length]
        if len(body) < length:
            return "asked to stop"
        message = read_to_child(body)
        return message.reason if isinstance(message, StopAsked) else None

    def _exactly(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            data = self._socket.recv(size_bytes - len(received))
            if not data:
                raise WorkerGone
            received += data
        return bytes(received)
