"""The end of a worker that has drained and could not stop what it runs: its process goes with it.

In: the attempts that the drain interrupted and that run on: a coroutine that swallows CancelledError, a
thread. Out: they are in line again, the worker is signed off, and there is no process. Nobody can end a
coroutine from outside, but the loop that runs it can be held still: so none does anything between the word to
the database and the end. A thread may, for that round trip. If the database does not answer, the lease runs
out, and what ran is taken back as from any dead worker (P6).
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final, NoReturn

import asyncpg

from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.lifecycle import EXIT_NOT_STOPPED, end_process
from turnstile.worker import transitions
from turnstile.worker.record import Claim, Offer, Record
from turnstile.worker.runners.threads import Run
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 2.0
_LAST_WORDS_SECONDS: Final = 4.0


def leave_with_process(
    settings: WorkerSettings, worker_id: WorkerId, kept: Sequence[Claim], running: Collection[Run]
) -> NoReturn:
    """Hand back `kept`, sign off and end the process; call it in the event loop, which it holds still."""

    def say() -> None:
        fields = {
            "worker_id": worker_id,
            "executions": ",".join(str(execution_id) for execution_id, _ in sorted(running)),
            "exit_code": EXIT_NOT_STOPPED,
        }
        logger.critical("not_stopped_in_time", extra=fields)
        asyncio.run(_leave(settings, worker_id, kept))

    end_process(say, seconds=_LAST_WORDS_SECONDS)


async def _leave(settings: WorkerSettings, worker_id: WorkerId, kept: Sequence[Claim]) -> None:
    # The worker's own connections belong to the loop that stands still.
    database = Database(
        settings.database_url.get_secret_value(),
        application_name="turnstile worker leaving",
        connections_max=1,
        timeouts=DatabaseTimeouts(
            connect_seconds=_CONNECT_SECONDS,
            acquire_seconds=_CONNECT_SECONDS,
            command_seconds=_CONNECT_SECONDS,
            give_up_seconds=_CONNECT_SECONDS,
        ),
    )
    await database.open()
    try:
        if kept:
            offers = [Offer(execution_id=each.execution_id, attempt=each.attempt) for each in kept]
            given = await Record(database, worker_id).hand_back(offers)
            for claim in kept:
                if claim.execution_id in given:
                    transitions.handed_back(claim)
        await database.fetch("SELECT turnstile.sign_off($1)", worker_id)
    except (Unavailable, asyncpg.PostgresError) as error:
        logger.warning("not_signed_off", extra={"reason": str(error)})
