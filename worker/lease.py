"""Holds this worker's lease, from a thread of its own, so that a blocked event loop does not lose it (P6).

In: the worker's id and the database. Out: whether the lease stands, and a call when the database says that
this worker was given up: it must then stop all it runs. Lease times are the database's clock alone.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

import asyncpg

from common.database import Database
from common.domain.errors import Unavailable
from common.domain.identifiers import WorkerId

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class Lease:
    """Renewed every `heartbeat_seconds` for `lease_seconds`, between `start` and `stop`."""

    def __init__(
        self,
        database_url: str,
        worker_id: WorkerId,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        on_lost: Callable[[], None],
        on_drain: Callable[[], None],
    ) -> None:
        """`on_lost` and `on_drain` are called in the event loop that calls `start`, at most once each."""
        self._database = Database(database_url, application_name="turnstile worker lease", connections_max=1)
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._on_lost = on_lost
        self._on_drain = on_drain
        self._stopping = threading.Event()
        self._renewed = asyncio.Event()
        self._lost = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start renewing; the row must have been registered."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 10)

    async def next_renewal(self) -> bool:
        """Wait for a renewal that is yet to come; False once there will be none: the lease is lost."""
        if not self._lost:
            self._renewed.clear()
            await self._renewed.wait()
        return not self._lost

    def _lose(self) -> None:
        self._lost = True
        self._renewed.set()
        self._on_lost()

    def _run(self) -> None:
        asyncio.run(self._renew_until_stopped())

    async def _renew_until_stopped(self) -> None:
        opening = asyncio.create_task(self._database.open(), name="open-database")
        drain_seen = False
        try:
            while not opening.done() and not self._stopping.is_set():
                await asyncio.wait({opening}, timeout=_RETRY_SECONDS)
            while not self._stopping.is_set():
                pause_seconds = self._heartbeat_seconds
                try:
                    alive, draining = await self._renew()
                except (Unavailable, asyncpg.PostgresError) as error:
                    logger.warning("lease_not_renewed", extra={"reason": str(error)})
                    pause_seconds = min(_RETRY_SECONDS, self._heartbeat_seconds)
                else:
                    if not alive:
                        logger.error("lease_lost", extra={"worker_id": self._worker_id})
                        self._loop.call_soon_threadsafe(self._lose)
                        return
                    self._loop.call_soon_threadsafe(self._renewed.set)
                    if draining and not drain_seen:
                        drain_seen = True
                        self._loop.call_soon_threadsafe(self._on_drain)
                await asyncio.to_thread(self._stopping.wait, pause_seconds)
        finally:
            opening.cancel()
            await self._database.close()

    async def _renew(self) -> tuple[bool, bool]:
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.renew($1, $2)", self._worker_id, self._lease_seconds
        )
        assert row is not None
        return row["alive"], row["draining"]
