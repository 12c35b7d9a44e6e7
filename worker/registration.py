"""How a worker id begins and ends in the database.

In: what this process is and serves. Out: a row whose lease can be held, actions that are known; at the end a
lease that is over at once, so that nothing waits for it. Next: `worker.session`.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import asyncpg

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import WorkerId
from turnstile.worker.record import Record
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0


class Registration:
    """One worker id's row."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        record: Record,
        worker_id: WorkerId,
        *,
        definitions: Sequence[ActionDefinition],
        pools: Sequence[str],
    ) -> None:
        self._settings = settings
        self._database = database
        self._record = record
        self._worker_id = worker_id
        self._definitions = definitions
        self._pools = pools

    async def begin(self, stop: asyncio.Event) -> bool:
        """Register the actions and this worker, however long it takes; False when stopped first."""
        while not stop.is_set():
            try:
                await self._register()
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.warning("not_registered", extra={"reason": str(error)})
                await _pause(stop)
            else:
                return True
        return False

    async def end(self, stop: asyncio.Event) -> None:
        """End the lease, so that what is left of it is taken back at once.

        Tries until the database answers, and only once when `stop` is set.
        """
        while True:
            try:
                await self._database.fetch("SELECT turnstile.sign_off($1)", self._worker_id)
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.warning("not_signed_off", extra={"reason": str(error)})
            else:
                return
            if stop.is_set():
                return
            await _pause(stop)

    async def _register(self) -> None:
        settings = self._settings
        for difference in await self._record.register_actions(self._definitions):
            logger.warning(
                "action_differs",
                extra={"action_ref": difference.ref, "fields": ",".join(difference.fields)},
            )
        await self._database.fetch(
            "SELECT turnstile.register_worker($1, $2, $3, $4, $5, $6, $7, $8)",
            self._worker_id,
            settings.worker_name,
            socket.gethostname(),
            os.getpid(),
            self._pools,
            settings.worker_concurrency,
            settings.lease_duration,
            [definition.ref for definition in self._definitions],
        )


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), _PAUSE_SECONDS)
