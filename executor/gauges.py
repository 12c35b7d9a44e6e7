"""Reads how the lines and the workers stand, for a scrape: one bounded query, at most one a second.

In: a database. Out: the gauges of `executor.metrics`, set. Every replica shows the same rows, so whoever adds
up over replicas takes the maximum. Without an answer there are no such gauges: a stale depth would lie.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg
from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.telemetry.instruments import Gauge, Labels
from turnstile.executor.metrics import (
    DEAD_LETTER_CODES,
    DEAD_LETTERS,
    METER,
    OLDEST_SECONDS,
    QUEUE_DEPTH,
    SCRAPE_FAILURES,
    SLOT_LIMIT,
    SLOTS_HELD,
    WORKERS,
)
from turnstile.executor.sql import query

logger = logging.getLogger(__name__)

_LINES_MAX: Final = 20_000
_FRESH_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0
_STATES: Final = ("live", "draining", "overdue")


class LineGauges:
    """The gauges that the database knows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS

    async def refresh(self) -> None:
        """Set the gauges anew, unless that was done within the last second."""
        async with self._turn:
            if time.monotonic() - self._read_at < _FRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    codes = [*map(str, DEAD_LETTER_CODES)]
                    row = await self._database.fetchrow(query("gauges"), _LINES_MAX, codes)
            except (Unavailable, asyncpg.PostgresError, TimeoutError) as error:
                logger.warning("gauges_not_read", extra={"reason": str(error) or "no answer in time"})
                SCRAPE_FAILURES.add()
                _forget()
            else:
                assert row is not None
                _show_actions(from_json(row["actions"] or "[]"))
                _show_workers(from_json(row["workers"] or "{}"))
                _show_dead_letters(from_json(row["dead_letters"] or "{}"))
            self._read_at = time.monotonic()


def _show_actions(actions: Sequence[Mapping[str, Any]]) -> None:
    shown: dict[Gauge, dict[Labels, float]] = {
        # Those with nobody in line stand at zero: a line that ends must not look like one that is unknown.
        QUEUE_DEPTH: {(name,): 0.0 for name in METER.action_refs},
        SLOTS_HELD: {(name,): 0.0 for name in METER.action_refs},
        OLDEST_SECONDS: {(name,): 0.0 for name in METER.action_refs},
        SLOT_LIMIT: {},
    }
    for action in actions:
        name = METER.action_refs[action["action_ref"]]
        label = (name,)
        for gauge, field in ((QUEUE_DEPTH, "depth"), (SLOTS_HELD, "slots")):
            shown[gauge][label] = shown[gauge].get(label, 0.0) + action[field]
        oldest_seconds = max(shown[OLDEST_SECONDS].get(label, 0.0), action["oldest_seconds"] or 0.0)
        shown[OLDEST_SECONDS][label] = oldest_seconds
        # Limits of several actions do not add up to anything.
        if action["slot_limit"] is not None and name == action["action_ref"]:
            shown[SLOT_LIMIT][label] = action["slot_limit"]
    for gauge, values in shown.items():
        gauge.values = values


def _show_workers(workers: Mapping[str, int]) -> None:
    WORKERS.values = {(state,): float(workers.get(state, 0)) for state in _STATES}


def _show_dead_letters(letters: Mapping[str, int]) -> None:
    # A code without letters stands at zero: to be told from one that could not be read.
    DEAD_LETTERS.values = {(code,): float(letters.get(code, 0)) for code in (*DEAD_LETTER_CODES, "other")}


def _forget() -> None:
    for gauge in (QUEUE_DEPTH, SLOTS_HELD, OLDEST_SECONDS, SLOT_LIMIT, WORKERS, DEAD_LETTERS):
        gauge.values = {}
