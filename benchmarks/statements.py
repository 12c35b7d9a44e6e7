"""Statements: settle and grant said as one call of a function, or as plain statements in a transaction.

Both on the same lines, in turn, at several batch sizes. What decides is the rate: every round trip is waited
for while the queue rows are locked.
"""

from functools import partial
from typing import Final

from benchmarks.client import looking
from benchmarks.ground import Ground
from benchmarks.interleaving import interleaved_medians
from benchmarks.line import Lines, by_function
from benchmarks.measures import Row, Section
from benchmarks.plain_statements import ROUND_TRIPS, by_statements
from benchmarks.sizes import Sizes

BATCHES: Final = (1, 10, 100)
QUEUES: Final = 10
LIMIT: Final = 10
DEPTH: Final = 1000


async def measure(ground: Ground, sizes: Sizes) -> list[Section]:
    """Settle and grant both ways in turn."""
    async with (
        ground.fresh("statements") as place,
        looking(place.database_url) as session,
        looking(place.database_url) as calling,
        looking(place.database_url) as stating,
    ):
        lines = await Lines.create(session, name="statements", queues=QUEUES, limit=LIMIT, depth=DEPTH)
        await session.execute("VACUUM ANALYZE")
        ways = {"function": by_function(calling), "statements": await by_statements(stating)}
        seconds: dict[str, dict[int, float]] = {way: {} for way in ways}
        for batch in BATCHES:
            kinds = {way: partial(lines.turn, settle, batch) for way, settle in ways.items()}
            for way, each in (await interleaved_medians(kinds, sizes.turns)).items():
                seconds[way][batch] = each
    return [_section(seconds["function"], seconds["statements"], sizes)]


def _section(function: dict[int, float], plain: dict[int, float], sizes: Sizes) -> Section:
    trips = {"one function": 1, "plain statements": ROUND_TRIPS}
    rows = [
        Row(name=f"{name}, round trips", unit="", cells={column(b): count for b in BATCHES})
        for name, count in trips.items()
    ]
    for name, seconds in (("one function", function), ("plain statements", plain)):
        rows.append(
            Row(
                name=f"{name}, executions settled and granted",
                unit="1/s",
                cells={column(batch): batch / each for batch, each in seconds.items()},
            )
        )
    ratios = {column(batch): plain[batch] / function[batch] for batch in BATCHES}
    rows.append(Row(name="the function is faster by", unit="times", cells=ratios))
    return Section(
        title="statements: settle and grant in one call, or in one transaction of plain statements",
        columns=tuple(column(batch) for batch in BATCHES),
        rows=tuple(rows),
        note=f"medians of {sizes.turns} turns, interleaved; one session, nothing else running",
    )


def column(batch: int) -> str:
    """Return the heading of a batch size."""
    return f"batch {batch}"
