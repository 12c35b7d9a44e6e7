"""Grants what waits for a rate limit, at the instant at which its next start is due (P13).

In: the dispatcher's grants, because each may use up a rate, and time: a used-up rate has its next start at a
known instant, and without one it checks once per tick (P7). Out: grants. Every replica runs it; the locks of
the gates make one of them decide, by the clock of the database.
"""

import asyncio
import logging
from typing import Final, NoReturn

import asyncpg

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.protocol import ExecutorProtocol

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.002
"""Between two statements: starts that are due within it are one batch."""
_GRANTS_SECONDS: Final = 0.02
"""From the first grant to a check of what it has used up."""


class RateTimer:
    """Sleeps until the next start of any rate is due."""

    def __init__(
        self, protocol: ExecutorProtocol, dispatcher: Dispatcher, *, interval_seconds: float
    ) -> None:
        """Look for new rates each `interval_seconds`."""
        self._protocol = protocol
        self._dispatcher = dispatcher
        self._interval_seconds = interval_seconds

    async def run(self) -> NoReturn:
        """Grant what is due until cancelled."""
        while True:
            self._dispatcher.granted.clear()
            has_rates, seconds = False, self._interval_seconds
            try:
                grants, next_seconds, has_rates = await self._protocol.pass_rates()
                if grants.granted:
                    reached(CrashPoint.RATE_GRANTED)
                await self._dispatcher.dispatch(grants)
                if next_seconds is not None:
                    seconds = min(seconds, next_seconds)
            except (Unavailable, asyncpg.PostgresError) as error:
                logger.debug("rates_postponed", extra={"reason": str(error)})
            await asyncio.sleep(_PAUSE_SECONDS)
            if not has_rates:
                await asyncio.sleep(self._interval_seconds)
                continue
            try:
                await asyncio.wait_for(self._dispatcher.granted.wait(), max(0.0, seconds - _PAUSE_SECONDS))
            except TimeoutError:
                if seconds < self._interval_seconds:
                    reached(CrashPoint.RATE_DUE)
                continue
            await asyncio.sleep(_GRANTS_SECONDS)
