"""The frames that the worker and its child processes exchange over a socket of their own.

A frame is its length (four bytes, network order) and a JSON object whose `kind` names it. To the child:
`Setup` once, then `Invoke`, and at most one `StopRequested`, after which the child ends. From the child:
`Loaded` once, then for each `Invoke` any number of `LogLine` and `Reported`, and one `Ended`.
"""

import os
import socket
import struct
import threading
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, Self

from pydantic import Field, TypeAdapter

from turnstile.worker.context import Invocation
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.progress import Progress

HEADER: Final = struct.Struct("!I")
_PEEK_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first frame."""

    parent_pid: int
    pythonpath: str | None
    """The worker's own PYTHONPATH, restored once the child has started."""
    log_level: int
    result_bytes_max: int
    kind: Literal["setup"] = "setup"


@dataclass(slots=True, kw_only=True)
class Invoke(Invocation):
    """Run an action."""

    kind: Literal["invoke"] = "invoke"

    @classmethod
    def of(cls, invocation: Invocation) -> Self:
        """Return the frame of an invocation."""
        return cls(**{field.name: getattr(invocation, field.name) for field in fields(Invocation)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The running action must stop; SIGTERM follows this frame."""

    reason: str
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The actions are loaded and the start hooks were called, unless that `failed`."""

    failed: Failed | None
    kind: Literal["loaded"] = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A record of `Context.logger`, for the worker's log."""

    level: int
    message: str
    kind: Literal["log_line"] = "log_line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """How far the action has come."""

    progress: Progress
    kind: Literal["reported"] = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the action ended."""

    outcome: Completed | Failed
    is_last: bool
    """The process ends: the action has closed what the next one would need."""
    kind: Literal["ended"] = "ended"


ToChild = Setup | Invoke | StopRequested
FromChild = Loaded | LogLine | Reported | Ended

_TO_CHILD: Final[TypeAdapter[ToChild]] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
_FROM_CHILD: Final[TypeAdapter[FromChild]] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def to_child(message: ToChild) -> bytes:
    """Return the frame of `message`."""
    return _frame(_TO_CHILD.dump_json(message))


def read_from_child(body: bytes) -> FromChild:
    """Return the message in a frame's body."""
    return _FROM_CHILD.validate_json(body)


def _frame(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


class WorkerGone(Exception):
    """The worker closed the socket, or died."""


class ChildChannel:
    """The child's end of the socket, with blocking calls."""

    def __init__(self, fd: int) -> None:
        # Programs that the actions start must not hold the socket open.
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._sending = threading.Lock()

    def receive(self) -> ToChild:
        """Wait for the next message; raises WorkerGone."""
        (length,) = HEADER.unpack(self._receive_exactly(HEADER.size))
        return _TO_CHILD.validate_json(self._receive_exactly(length))

    def send(self, message: FromChild) -> None:
        """Send `message` whole, also when several threads log at once; raises WorkerGone."""
        with self._sending:
            try:
                self._socket.sendall(_frame(_FROM_CHILD.dump_json(message)))
            except OSError as error:
                raise WorkerGone from error

    def stop_reason(self) -> str | None:
        """Return why the running action must stop, or None.

        While an action runs, the worker writes nothing but `StopRequested`. This peeks at that frame;
        `receive` takes it once the action has ended.
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
            return "a stop was requested"
        message = _TO_CHILD.validate_json(body)
        return message.reason if isinstance(message, StopRequested) else None

    def _receive_exactly(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            data = self._socket.recv(size_bytes - len(received))
            if not data:
                raise WorkerGone
            received += data
        return bytes(received)
