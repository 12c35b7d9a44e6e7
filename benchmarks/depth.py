"""Depth: what a settle and grant costs beside few and beside very many waiting, in turn, in one database.

Once as bulk-loaded, without statistics, and once after VACUUM ANALYZE: the plans must not depend on either.
"""

from functools import partial
from typing import Final

from benchmarks.client import looking
from benchmarks.ground import Ground
from benchmarks.interleaving import interleaved_medians
from benchmarks.line import Lines, by_function
from benchmarks.measures import Aim, Row, Section
from benchmarks.sizes import Sizes

_AIM_RATIO: Final = 1.2
_AIMED_DEPTH_MAX: Final = 100_000


async def measure(ground: Ground, sizes: Sizes) -> list[Section]:
    """Fill one line of each depth, then settle and grant in all of them in turn."""
    rows: list[Row] = []
    async with ground.fresh("depth") as place, looking(place.database_url) as session:
        for table in ("execution", "waiting"):
            # Statistics come when this part says so.
            await session.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        lines = {
            depth: await Lines.create(session, name=f"depth{depth}", queues=1, limit=1, depth=depth)
            for depth in sizes.depths
        }
        settle = by_function(session)
        kinds = {depth: partial(line.turn, settle) for depth, line in lines.items()}
        for state, statement in (
            ("bulk-loaded, no statistics", "CHECKPOINT"),
            ("after VACUUM ANALYZE", "VACUUM ANALYZE"),
        ):
            await session.execute(statement)
            rows += _rows(state, await interleaved_medians(kinds, sizes.turns))
    return [
        Section(
            title="depth: one settle and grant beside so many waiting",
            columns=tuple(_column(depth) for depth in sizes.depths),
            rows=tuple(rows),
            note=f"medians of {sizes.turns} turns each, interleaved",
        )
    ]


def _rows(state: str, seconds: dict[int, float]) -> list[Row]:
    fastest = min(seconds.values())
    # Both ways: a plan that reads the history is slow for the short line, whose heads are the newest.
    aim = Aim(at_most=_AIM_RATIO, columns=tuple(_column(d) for d in seconds if d <= _AIMED_DEPTH_MAX))
    return [
        Row(name=state, unit="µs", cells={_column(depth): 1e6 * each for depth, each in seconds.items()}),
        Row(
            name="ratio to the fastest",
            unit="",
            cells={_column(depth): each / fastest for depth, each in seconds.items()},
            aims=(aim,),
        ),
    ]


def _column(depth: int) -> str:
    return f"{depth:,}"
