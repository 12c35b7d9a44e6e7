"""The columns in which a stage is recorded: one row of a numpy structured array for each thing that happened.

Instants are int64 nanoseconds since 1970, on the clock of the host of the harness; `NEVER` is what has not
happened, and sorts last. Instants of the record (`execution`, `attempt`) are those that the database wrote;
those of `run` come from the monotonic clock of the host on which the action ran. Queues are numbered from 0:
action times keys plus key.
"""

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from turnstile.common.domain.states import Status

Table = NDArray[np.void]
"""A structured array of one of the types below."""
Instants = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max
NONE: Final = -1
"""A number that is not known."""
SECOND: Final = 1_000_000_000

STATUSES: Final = tuple(Status)
"""A status is stored as its place in here."""


class Answer(IntEnum):
    """What the executor said to a request."""

    NONE = 0
    ACCEPTED = 1
    DUPLICATE = 2
    """Accepted, and known before: the harness asked again after a lost answer."""
    REJECTED = 3


class Outcome(IntEnum):
    """How one attempt ended."""

    OPEN = 0
    """It has not."""
    ENDED = 1
    """With the execution itself."""
    RETRIED = 2
    RECLAIMED = 3
    """Its worker was lost."""
    HANDED_BACK = 4
    """Its worker was stopped in order."""


class RunEnd(IntEnum):
    """How a physical run ended."""

    STOPPED = 0
    """The action said so itself."""
    KILLED = 1
    """Its process was seen to be gone; `stopped_at` is when that was known."""
    UNKNOWN = 2
    """It has not said so, and nobody saw its process end; `stopped_at` is NEVER."""


ORDER: Final = np.dtype(
    [
        ("submitter", "i2"),
        ("queue", "i4"),
        ("duration_us", "i4"),
        ("sent_at", "i8"),
        ("confirmed_at", "i8"),
        ("answered_at", "i8"),
        ("execution_id", "i8"),
        ("answer", "u1"),
        ("sendings", "u2"),
    ]
)
"""What was asked: row `number`, in the order in which its submitter sent it. `sent_at` is the first
sending."""

EXECUTION: Final = np.dtype(
    [
        ("execution_id", "i8"),
        ("number", "i8"),
        ("queue", "i4"),
        ("status", "u1"),
        ("attempt", "i2"),
        ("created_at", "i8"),
        ("completed_at", "i8"),
    ]
)
"""What the record holds at the end, in the order of `execution_id`. `number`: of the order; NONE: not of
ours."""

ATTEMPT: Final = np.dtype(
    [
        ("execution_id", "i8"),
        ("attempt", "i2"),
        ("queue", "i4"),
        ("waiting_since", "i8"),
        ("granted_at", "i8"),
        ("started_at", "i8"),
        ("ended_at", "i8"),
        ("outcome", "u1"),
        ("worker", "i4"),
    ]
)
"""Each grant of a slot, as the record has it. `worker`: place in `Recording.workers`; NONE: not claimed."""

RUN: Final = np.dtype(
    [
        ("number", "i8"),
        ("execution_id", "i8"),
        ("attempt", "i2"),
        ("queue", "i4"),
        ("process", "i4"),
        ("started_at", "i8"),
        ("stopped_at", "i8"),
        ("end", "u1"),
    ]
)
"""Each time that an action really ran, as it said itself. `process`: one number for each process of a
host."""

SAMPLE: Final = np.dtype([("at", "i8"), ("action", "i4"), ("waiting", "i8"), ("active", "i8")])
"""What `queue-stats` said now and then."""


def empty(dtype: np.dtype[Any], rows: int) -> Table:
    """Return a table of unknown values: numbers NONE, instants NEVER, codes 0."""
    table = np.zeros(rows, dtype)
    assert dtype.names is not None
    for name in dtype.names:
        if name.endswith(("_at", "_since")):
            table[name] = NEVER
        elif dtype[name].kind == "i":
            table[name] = NONE
    return table


def status_code(status: Status) -> int:
    """Return the number under which a status is stored."""
    return STATUSES.index(status)
