"""What a worker needs of its surroundings: broker, clock, runner, identities. The simulation has its own.

Every call that leaves the process may take long, fail, or succeed without an answer. It has a time-out of
its own, and raises `Unavailable` when that has passed or when the server refuses: the outcome is then
unknown. The logic repeats what it must, so an adapter repeats nothing. Cancelling a call only ends the wait
for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    Heartbeat,
    Hello,
    Offer,
    Report,
    ToSession,
)
from turnstile.worker.core.outcomes import Completed, Failed


class SessionQueue(Protocol):
    """The exclusive queue of one session, and the connection that consumes it. It is never opened again."""

    async def take(self, count: int) -> list[ToSession]:
        """Wait for messages, and return up to `count` that have arrived, in order.

        They are acknowledged with that. Raises Unavailable once the connection is gone, and from then on.
        """

    async def probe(self) -> None:
        """Publish a message to this queue, as the leader would, and return once it has come back.

        What was sent to the queue before it has arrived then: `take` returns it. Raises Unavailable.
        """

    def close(self) -> None:
        """Close the connection, and with it the queue; repeatable."""


class Broker(Protocol):
    """The broker, as a worker uses it: sessions, reports and heartbeats have one connection each."""

    async def open_session(self, worker_id: str, session: int) -> SessionQueue:
        """Declare the queue `worker.<id>.<session>` and consume it. Raises Unavailable.

        After a failure the queue may exist: the next attempt uses the next session number.
        """

    async def publish_reports(self, reports: Sequence[Report]) -> None:
        """Publish in order, and return once the broker has confirmed all.

        Raises Unavailable: each of them may have arrived, or may arrive later. Called by one task at a time.
        """

    async def send_heartbeat(self, message: Hello | Heartbeat) -> None:
        """Send without waiting for reports or logs; only the leader's answer counts. Raises Unavailable.

        Gives up within half a heartbeat interval.
        """


class Clock(Protocol):
    """A monotonic clock that also counts while the process is stopped or the machine sleeps; seconds."""

    def monotonic(self) -> float:
        """Return the present instant of this process's clock. Callable from any thread."""

    def wall(self) -> float:
        """Return seconds since 1970; it may step, and is only reported, never compared."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until `event` is set, at most so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The runner could not start it, for a reason of its own: nothing of it has happened."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """It ended because the worker's process is stopped from outside: it is to run again."""

    reason: str


RunEnd: TypeAlias = Completed | Failed | NotStarted | CutShort
"""How a run ended by itself. What a stopped run still returns is not used."""


class Run(Protocol):
    """One run in progress."""

    def ask_to_stop(self, reason: str) -> None:
        """Ask it to end by itself; returns at once. Called at most once."""

    def kill(self) -> None:
        """End it with all its processes; returns at once; repeatable. A coroutine may survive that."""


class Runner(Protocol):
    """Starts what attempts run."""

    def start(self, offer: Offer, ended: Callable[[RunEnd], None]) -> Run:
        """Start a run; returns at once. Never called twice with the same grant by one worker id.

        `ended` is to be called once, in the caller's loop and not within this call, when nothing of the run
        is left.
        """


class Identities(Protocol):
    """Random names: neither is ever given twice."""

    def worker_id(self) -> str:
        """Return a new worker id."""

    def secret(self) -> str:
        """Return a new secret. It is never logged."""


class Executors(Protocol):
    """The executors' HTTP, where the worker may reach it (`TURNSTILE_API_URL`)."""

    async def no_reclaim_seconds(self, worker_id: str) -> float:
        """Return for how long, from the sending of this question on, nothing of the worker is reclaimed.

        Zero: the leader has the broker, and promises nothing. Raises Unavailable.
        """


class Host(Protocol):
    """The process in which the worker runs. Every call returns at once."""

    def ending(self, offer: Offer, report: AttemptEnded | AttemptReturned) -> AttemptEnded | AttemptReturned:
        """Note how an attempt ends; return its report, with the part of its log that was not published."""

    def has_left_behind(self) -> bool:
        """Return whether something still runs of an attempt that ended by itself: a thread that it began."""

    def kill_at(self, instant: float) -> None:
        """Have all runs killed from outside at this instant, even if this process is stopped."""

    def lost(self) -> None:
        """Note that the lease is over and that nothing of this worker id runs any more."""

    def welcomed(self, stored: Sequence[Mapping[str, Any]], refused: Sequence[str]) -> None:
        """Note what the installation has otherwise than this worker's code, and what it refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All ports of one worker process."""

    broker: Broker
    clock: Clock
    runner: Runner
    identities: Identities
    executors: Executors | None = None
    host: Host | None = None
