"""The jobs of both systems: groups of actions, and jobs that record their start and stop.

A held job waits between start and stop for a file that is created when all other jobs wait behind it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.waiting import until
from turnstile.stress.trace import START, STOP, TraceWriter

DATABASE_URL: Final = "BENCH_DATABASE_URL"
TRACES: Final = "BENCH_TRACES"
"""The folder of the trace files."""

_POLL_SECONDS: Final = 0.002
_HELD_SECONDS_MAX: Final = 120.0


def gate_of(folder: Path, load: int) -> Path:
    """Return the file whose creation releases the held job of a load."""
    return folder / f"{load}.open"


def _record(kind: int, load: int, action: int, number: int) -> None:
    """Write a trace record, with the load as execution id and the action as attempt."""
    _writer().write(kind, number, load, action)


@cache
def _writer() -> TraceWriter:
    return TraceWriter(Path(os.environ[TRACES]))


async def run(load: int, action: int, number: int, held: bool, seconds: float) -> None:
    """Run a job in an event loop."""
    _record(START, load, action, number)
    if held:
        gate = gate_of(Path(os.environ[TRACES]), load)

        async def opened() -> bool:
            return gate.exists()

        await until(
            opened, "the other jobs wait", deadline_seconds=_HELD_SECONDS_MAX, pause_seconds=_POLL_SECONDS
        )
    if seconds:
        await asyncio.sleep(seconds)
    _record(STOP, load, action, number)


ACTIONS: Final = 10
LIMIT: Final = 4
TIMED_SECONDS: Final = 0.02


class Group(StrEnum):
    """Actions with one kind of limit; each group is a load of its own."""

    FREE = "free"
    """Ten actions without a limit."""
    LIMITED = "limited"
    """Ten actions with a limit of four each."""
    TIMED = "timed"
    """The same limits, and jobs of 20 ms: the limits and not the processors bound the rate."""
    SINGLE = "single"
    """One action, one at a time."""

    @property
    def actions(self) -> int:
        """The number of actions."""
        return 1 if self is Group.SINGLE else ACTIONS

    @property
    def limit(self) -> int | None:
        """The concurrency limit of each action."""
        return {Group.FREE: None, Group.LIMITED: LIMIT, Group.TIMED: LIMIT, Group.SINGLE: 1}[self]


class Job(NamedTuple):
    """One job; its fields are its arguments."""

    load: int
    """Its load in the session."""
    action: int
    number: int
    """Its position in the order of submission."""
    held: bool
    """It runs until all other jobs of its load have been submitted."""
    seconds: float
    """Its duration."""


def jobs_of(load: int, group: Group, count: int) -> list[Job]:
    """Return the jobs of a load, over the actions in turn; the first job of a single action is held."""
    return [
        Job(
            load,
            number % group.actions,
            number,
            held=group is Group.SINGLE and number == 0,
            seconds=TIMED_SECONDS if group is Group.TIMED else 0.0,
        )
        for number in range(count)
    ]


def name_of(group: Group, action: int) -> str:
    """Return the name of an action, the same in both systems."""
    return f"{group}.{action}"


ALL_ACTIONS: Final = tuple((group, action) for group in Group for action in range(group.actions))

Submit = Callable[[Group, Sequence[Job]], Awaitable[None]]
"""Submits the jobs of a load in order; returns when the system has accepted all of them."""
