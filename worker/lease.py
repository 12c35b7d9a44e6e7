"""Renews the worker's lease, decides what it permits now, and enforces its loss (P6).

In: renewals, made by a thread of its own that a blocked event loop does not delay; answers of the broker
(`worker.control`). Out: what may be done now, as `worker.fence` decides, for any thread; and one call in the
event loop when the lease is lost. If the runs are not stopped soon after that, the thread ends the process
before the lease ends on the database's clock: nothing else stops a coroutine, and the supervisor kills the
child processes.
"""

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import asyncpg

from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.lifecycle import EXIT_NOT_STOPPED, end_process
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.fence import Evidence, Standing, Terms
from turnstile.worker.protocol import WorkerProtocol, single_connection

logger = logging.getLogger(__name__)
_NOT_RENEWED: Final = Episodes(logger, "lease_not_renewed")

_RETRY_SECONDS: Final = 0.5
_NOT_READY_PAUSE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.25
"""Longest sleep: the lease's clock also runs while this process is stopped, the loop's clock does not."""
_ENFORCE_POLL_SECONDS: Final = 0.02
_JOIN_SECONDS: Final = 10.0


def clock() -> float:
    """Return seconds of CLOCK_BOOTTIME, which also counts while the process is stopped or the machine sleeps.

    Where it does not exist: of the monotonic clock. The supervisor process has the same clock.
    """
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


class Lease:
    """One worker id's lease; create it in the event loop that runs the attempts."""

    def __init__(
        self, terms: Terms, *, on_lost: Callable[[], None], set_deadline: Callable[[float | None], None]
    ) -> None:
        """`on_lost` is called in the event loop, at most once.

        `set_deadline` is called from any thread with the instant at which the supervisor kills the runs.
        """
        self.terms = terms
        self._on_lost = on_lost
        self._set_deadline = set_deadline
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._renewed_at: float | None = None
        self._reached_at: float | None = None
        self._certain_until = -math.inf
        self._changed = asyncio.Event()
        self.all_stopped = threading.Event()
        """Set once nothing runs any more."""
        self.lost_at: float | None = None
        """When the lease was found to be over; final."""
        self.given_up = False
        """Whether the database ended the lease: this worker's executions are reclaimed already."""

    @property
    def evidence(self) -> Evidence:
        """What is known at this moment."""
        return Evidence(renewed_at=self._renewed_at, reached_at=self._reached_at)

    @property
    def lost(self) -> bool:
        """Whether the lease was found to be over."""
        return self.lost_at is not None

    def standing(self) -> Standing:
        """Return the standing now. The first caller to find the lease over makes that final."""
        now = clock()
        # Asked several times per attempt: between two renewals the answer is one comparison.
        if now < self._certain_until:
            return Standing.CERTAIN
        if self.lost_at is None:
            standing = self.terms.standing(self.evidence, now=now)
            if standing is not Standing.OVER:
                return standing
            self.lose("neither the database nor the broker was reached in time")
        return Standing.OVER

    def renewed(self, sent_at: float) -> None:
        """Note that a renewal, sent at this instant of the clock, succeeded."""
        with self._guard:
            if self.lost:
                return
            self._renewed_at = sent_at
            self._certain_until = self.terms.certain_until(self.evidence)
        self._set_deadline(self.terms.killed_from_outside_at(self.evidence))
        self._loop.call_soon_threadsafe(self._changed.set)

    def reached_broker(self, probed_at: float) -> None:
        """Note that a probe, sent at this instant of the clock, found that cancel messages would arrive."""
        with self._guard:
            if self.lost:
                return
            self._reached_at = probed_at
        self._set_deadline(self.terms.killed_from_outside_at(self.evidence))

    def lose(self, reason: str, *, given_up: bool = False) -> None:
        """Make the loss final; later evidence changes nothing."""
        with self._guard:
            if self.lost:
                return
            self.given_up = given_up
            self._certain_until = -math.inf
            self.lost_at = clock()
        self._loop.call_soon_threadsafe(self._notify_lost)
        logger.error("lease_lost", extra={"reason": reason})

    def _notify_lost(self) -> None:
        self._changed.set()
        self._on_lost()

    async def certain(self) -> bool:
        """Wait until work may start; False once nothing may start: the lease is lost."""
        while (standing := self.standing()) is Standing.IN_DOUBT:
            await self.next_renewal()
        return standing is Standing.CERTAIN

    async def doubted(self) -> None:
        """Wait until nothing may start any more; the time before the first renewal does not count."""
        while True:
            spare_seconds = self.terms.certain_until(self.evidence) - clock()
            if self.evidence.renewed_at is None:
                await self.next_renewal()
            elif spare_seconds > 0:
                await asyncio.sleep(min(spare_seconds, _POLL_SECONDS))
            else:
                return

    async def next_renewal(self) -> bool:
        """Wait for the next renewal; False once there will be none: the lease is lost."""
        if not self.lost:
            self._changed.clear()
            await self._changed.wait()
        return not self.lost

    def seconds_to_probe(self) -> float:
        """Return how long the broker need not be probed; zero or less while a renewal is late."""
        return self.terms.probes_broker_from(self.evidence) - clock()


class LeaseThread:
    """Renews between `start` and `stop`, unless the lease is lost."""

    def __init__(
        self,
        lease: Lease,
        database_url: str,
        worker_id: WorkerId,
        *,
        not_ready: Callable[[], str | None],
        on_drain: Callable[[], None],
    ) -> None:
        """`on_drain` is called in the event loop that calls `start`, at most once.

        `not_ready` is called in the thread: why the worker can run nothing now, or None.
        """
        self._lease = lease
        self._not_ready = not_ready
        self._worker_id = worker_id
        self._on_drain = on_drain
        self._heartbeat_seconds = lease.terms.heartbeat_seconds
        timeout_seconds = self._heartbeat_seconds / 2
        self._database = single_connection(
            database_url, "lease", timeout_seconds, give_up_seconds=timeout_seconds / 4
        )
        self._protocol = WorkerProtocol(self._database, worker_id)
        self._stopping = asyncio.Event()

    @property
    def database_error(self) -> str | None:
        """Why the last renewal could not reach the database; None: it did."""
        return self._database.last_error

    def start(self) -> None:
        """Start renewing; the worker must be registered."""
        self._loop = asyncio.get_running_loop()
        self._own_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing. Whatever still runs ends with the process."""
        self._lease.all_stopped.set()
        with suppress(RuntimeError):  # the thread has ended
            self._own_loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _run(self) -> None:
        ended_normally = False
        try:
            with asyncio.Runner(loop_factory=lambda: self._own_loop) as runner:
                runner.run(self._keep())
            ended_normally = True
        finally:
            if not ended_normally:
                # Without this thread nothing would stop the runs when the lease ends.
                sys.excepthook(*sys.exc_info())
                os._exit(EXIT_NOT_STOPPED)

    async def _keep(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew_until_lost(), name="renew")
                await self._watch()
                renewing.cancel()
                await self._enforce()
        finally:
            await self._database.close()

    async def _watch(self) -> None:
        """Return once the lease is lost, or is no longer needed."""
        terms = self._lease.terms
        while not self._stopping.is_set() and self._lease.standing() is not Standing.OVER:
            left_seconds = terms.may_run_until(self._lease.evidence) - clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(max(left_seconds, 0.0), _POLL_SECONDS))

    async def _enforce(self) -> None:
        """Wait until all runs of a lost lease are stopped; end the process when that takes too long."""
        lost_at = self._lease.lost_at
        fields = {"worker_id": self._worker_id, "exit_code": EXIT_NOT_STOPPED}
        while lost_at is not None and not self._lease.all_stopped.is_set():
            if clock() >= lost_at + self._lease.terms.enforce_seconds:
                end_process(lambda: logger.critical("not_stopped_in_time", extra=fields))
            await asyncio.sleep(_ENFORCE_POLL_SECONDS)

    async def _renew_until_lost(self) -> None:
        await self._database.open()
        drain_seen = False
        while not self._lease.lost:
            sent_at, not_ready = clock(), self._not_ready()
            try:
                alive, draining = await self._protocol.renew(
                    self._lease.terms.lease_seconds, not_ready=not_ready
                )
            except (Unavailable, asyncpg.PostgresError) as error:
                _NOT_RENEWED.failed("lease", reason=str(error))
                await asyncio.sleep(min(_RETRY_SECONDS, self._heartbeat_seconds / 2))
                continue
            if not alive:
                self._lease.lose("the database ended this worker's lease", given_up=True)
                return
            self._lease.renewed(sent_at)
            _NOT_RENEWED.works("lease")
            if draining and not drain_seen:
                drain_seen = True
                self._loop.call_soon_threadsafe(self._on_drain)
            # Soon after it is ready again, its page says so.
            pause_seconds = self._heartbeat_seconds
            if not_ready is not None:
                pause_seconds = min(pause_seconds, _NOT_READY_PAUSE_SECONDS)
            await asyncio.sleep(max(0.0, sent_at + pause_seconds - clock()))
