"""Renews the lease and watches it, in a thread of its own, which a blocked event loop does not hold up (P6).

In: time. Out: renewals, and the judgement that the lease is over. If what runs is not stopped soon after,
this ends the process, before the lease ends on the database's clock: nothing else stops a coroutine, and the
guardian kills the rest. Next: `worker.lease` tells the session.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import asyncpg

from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.lifecycle import EXIT_NOT_STOPPED, end_process
from turnstile.worker.clock import clock
from turnstile.worker.fence import Standing
from turnstile.worker.lease import Lease

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.25
"""Longest wait between two looks at the clock: waiting is counted on one that stands still in a sleep."""
_ENFORCE_LOOK_SECONDS: Final = 0.02
_JOIN_SECONDS: Final = 10.0


class LeaseThread:
    """Renews between `start` and `stop`, and no more once the lease is lost."""

    def __init__(
        self, lease: Lease, database_url: str, worker_id: WorkerId, *, on_drain: Callable[[], None]
    ) -> None:
        """`on_drain` is called in the event loop that calls `start`, at most once."""
        self._lease = lease
        self._worker_id = worker_id
        self._on_drain = on_drain
        self._heartbeat_seconds = lease.terms.heartbeat_seconds
        patience_seconds = self._heartbeat_seconds / 2
        self._database = Database(
            database_url,
            application_name="turnstile worker lease",
            connections_max=1,
            timeouts=DatabaseTimeouts(
                connect_seconds=patience_seconds,
                acquire_seconds=patience_seconds,
                command_seconds=patience_seconds,
                give_up_seconds=patience_seconds / 4,
                close_seconds=patience_seconds,
            ),
        )
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start renewing; the worker must have been registered."""
        self._loop = asyncio.get_running_loop()
        self._own_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing. Whatever still runs then ends with the process."""
        self._lease.all_stopped()
        with suppress(RuntimeError):  # the thread has ended
            self._own_loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _run(self) -> None:
        in_order = False
        try:
            with asyncio.Runner(loop_factory=lambda: self._own_loop) as runner:
                runner.run(self._keep())
            in_order = True
        finally:
            if not in_order:
                # Without this thread nobody would know when to stop.
                sys.excepthook(*sys.exc_info())
                os._exit(EXIT_NOT_STOPPED)

    async def _keep(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew_again_and_again(), name="renew")
                await self._watch()
                renewing.cancel()
                await self._see_to_the_end()
        finally:
            await self._database.close()

    async def _watch(self) -> None:
        """Return once the lease is lost, or is not needed any more."""
        terms = self._lease.terms
        while not self._stopping.is_set() and self._lease.standing() is not Standing.OVER:
            left_seconds = terms.may_run_until(self._lease.evidence) - clock()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(max(left_seconds, 0.0), _LOOK_SECONDS))

    async def _see_to_the_end(self) -> None:
        lost_at = self._lease.lost_at
        while lost_at is not None and not self._lease.is_all_stopped:
            if clock() >= lost_at + self._lease.terms.enforce_seconds:
                self._end_process()
            await asyncio.sleep(_ENFORCE_LOOK_SECONDS)

    async def _renew_again_and_again(self) -> None:
        await self._database.open()
        drain_seen, failures = False, 0
        while not self._lease.lost:
            asked_at = clock()
            try:
                alive, draining = await self._renew()
            except (Unavailable, asyncpg.PostgresError) as error:
                failures += 1
                if failures == 1:
                    logger.warning("lease_not_renewed", extra={"reason": str(error)})
                await asyncio.sleep(min(_RETRY_SECONDS, self._heartbeat_seconds / 2))
                continue
            if not alive:
                self._lease.lose("the database gave this worker up", given_up=True)
                return
            self._lease.renewed(asked_at)
            if failures:
                logger.info("lease_renewed_again", extra={"failures": failures})
            failures = 0
            if draining and not drain_seen:
                drain_seen = True
                self._loop.call_soon_threadsafe(self._on_drain)
            await asyncio.sleep(max(0.0, asked_at + self._heartbeat_seconds - clock()))

    async def _renew(self) -> tuple[bool, bool]:
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.renew($1, $2)", self._worker_id, self._lease.terms.lease_seconds
        )
        assert row is not None
        return row["alive"], row["draining"]

    def _end_process(self) -> None:
        fields = {"worker_id": self._worker_id, "exit_code": EXIT_NOT_STOPPED}
        end_process(lambda: logger.critical("not_stopped_in_time", extra=fields))
