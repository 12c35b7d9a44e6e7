"""What the worker and its child processes say to each other: frames over a socket of their own.

A frame is its length (four bytes, network order) and a JSON object whose `kind` names it. To the child:
`Setup` once, then `Invoke`, and `StopAsked` at most once, followed by its end. From the child: `Ready` or
`NotReady` once, then for each `Invoke` any number of `LogLine` and one `Ended`.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.outcomes import Completed, Failed

HEADER: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first frame: what the child is to be."""

    parent_pid: int
    pythonpath: str | None
    """The worker's own PYTHONPATH, put back once the child has started."""
    log_level: int
    result_bytes_max: int
    kind: Literal["setup"] = "setup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke:
    """Run an action."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    entrypoint: str | None
    parameters_json: str
    traceparent: str | None
    kind: Literal["invoke"] = "invoke"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The running action is to stop; SIGTERM says that this was written."""

    reason: str
    kind: Literal["stop_asked"] = "stop_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The actions are loaded."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """The actions could not be loaded."""

    message: str
    kind: Literal["not_ready"] = "not_ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A record of `Context.logger`, for the worker's log."""

    level: int
    message: str
    kind: Literal["log_line"] = "log_line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the action ended."""

    outcome: Completed | Failed
    kind: Literal["ended"] = "ended"


ToChild = Setup | Invoke | StopAsked
FromChild = Ready | NotReady | LogLine | Ended

_TO_CHILD: Final[TypeAdapter[ToChild]] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
_FROM_CHILD: Final[TypeAdapter[FromChild]] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def to_child(message: ToChild) -> bytes:
    """Return the frame of `message`."""
    return _frame(_TO_CHILD.dump_json(message))


def from_child(message: FromChild) -> bytes:
    """Return the frame of `message`."""
    return _frame(_FROM_CHILD.dump_json(message))


def read_to_child(body: bytes) -> ToChild:
    """Return the message in a frame's body."""
    return _TO_CHILD.validate_json(body)


def read_from_child(body: bytes) -> FromChild:
    """Return the message in a frame's body."""
    return _FROM_CHILD.validate_json(body)


def _frame(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body
