"""Reads what executions did over time: points of a chart, totals, and the busiest actions.

In: a window, perhaps one action, and prefixes of the actions that the caller may see. Out: the counts of
whole minutes, added up by the database; percentiles come from added histograms.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from turnstile.common.schemas import ActionHistory, History, HistoryCounts, HistoryPoint, HistoryWindow
from turnstile.executor.histogram import percentile
from turnstile.executor.queries.read_limiter import LimitedReader
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

ACTIONS_MAX: Final = 100
_WINDOWS: Final[Mapping[HistoryWindow, tuple[int, int]]] = {
    "1h": (3600, 60),
    "24h": (86400, 600),
    "7d": (7 * 86400, 3600),
}
"""Seconds of each window, and of each of its points."""
_COUNTS: Final = (
    "admitted", "started", "completed", "failed", "timeout", "cancelled", "expired", "abandoned",
)  # fmt: skip
_STATEMENTS: Final = statements("queries/history.sql")


class HistoryReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    async def history(
        self, window: HistoryWindow, *, action_ref: str | None, scope: Sequence[str] | None
    ) -> History:
        """Return what happened in a window, of one action or of all."""
        seconds, resolution = _WINDOWS[window]
        async with self.snapshot() as connection:
            until = await connection.fetchval(_STATEMENTS["until"])
            since = until - timedelta(seconds=seconds)
            found = await connection.fetch(
                _STATEMENTS["history"], since, until, float(resolution), action_ref, scope
            )
        points = {row["point"]: row for row in found if row["point"] is not None}
        actions = [row for row in found if row["action_ref"] is not None]
        (total,) = (row for row in found if row["point"] is None and row["action_ref"] is None)
        busiest = nlargest(ACTIONS_MAX, actions, key=lambda row: (row["started"], row["slot_seconds"]))
        instants = (since + timedelta(seconds=start) for start in range(0, seconds, resolution))
        return History(
            window=window,
            resolution_seconds=resolution,
            until=until,
            points=[HistoryPoint(at=at, **_counts(points.get(at), resolution)) for at in instants],
            totals=HistoryCounts(**_counts(total, seconds)),
            actions=None
            if action_ref is not None
            else [ActionHistory(action_ref=row["action_ref"], **_counts(row, seconds)) for row in busiest],
            **{"from": since},
        )


def _counts(row: "Row | None", seconds: float) -> dict[str, Any]:
    """Return the fields of a time of so many seconds; None: nothing happened."""
    counts = {name: 0 if row is None else int(row[name] or 0) for name in _COUNTS}
    percentiles = {
        f"{name}_p{percent}_seconds": percentile(0 if row is None else int(row[name] or 0), percent / 100)
        for name in ("waiting", "running")
        for percent in (50, 95)
    }
    slots_used = 0.0 if row is None else (row["slot_seconds"] or 0.0) / seconds
    return {**counts, **percentiles, "slots_used": slots_used}
