"""Slot numbers: what it costs to back the limit by numbered slots and their unique index.

The same settle and grant in two databases, in turn: the protocol as it is, and a copy of it that numbers no
slots and counts them by a plain index.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.client import looking
from benchmarks.ground import Ground
from benchmarks.interleaving import interleaved_medians
from benchmarks.line import Lines, by_function
from benchmarks.measures import Aim, Row, Section
from benchmarks.sizes import Sizes
from benchmarks.statements import BATCHES, DEPTH, LIMIT, QUEUES, column
from turnstile.common.statements import installation_text

if TYPE_CHECKING:
    from benchmarks.line import Session

_NUMBERING: Final = re.compile(
    r"CASE WHEN c\.max_concurrent IS NOT NULL THEN ARRAY\(.*?\) END AS numbers", re.DOTALL
)
_UNNUMBERED: Final = "NULL::integer[] AS numbers"
_PLAIN_INDEX: Final = "DROP INDEX uq_slot_number; CREATE INDEX ix_slot_queue_id ON slot (queue_id)"
_NUMBERED: Final = "numbered"
_NOT_NUMBERED: Final = "not numbered"
_AIM_SHARE: Final = 0.05


async def measure(ground: Ground, sizes: Sizes) -> list[Section]:
    """Settle and grant with and without numbers in turn."""
    async with (
        ground.fresh("numbered") as numbered_place,
        ground.fresh("unnumbered") as plain_place,
        looking(numbered_place.database_url) as numbered,
        looking(plain_place.database_url) as plain,
    ):
        await remove_numbers(plain)
        sides = {}
        for name, session in ((_NUMBERED, numbered), (_NOT_NUMBERED, plain)):
            lines = await Lines.create(session, name="slots", queues=QUEUES, limit=LIMIT, depth=DEPTH)
            await session.execute("VACUUM ANALYZE")
            sides[name] = partial(lines.turn, by_function(session))
        seconds: dict[str, dict[int, float]] = {name: {} for name in sides}
        for batch in BATCHES:
            kinds = {name: partial(turn, batch) for name, turn in sides.items()}
            for name, each in (await interleaved_medians(kinds, sizes.turns)).items():
                seconds[name][batch] = each
    return [_section(seconds[_NUMBERED], seconds[_NOT_NUMBERED], sizes)]


async def remove_numbers(session: Session) -> None:
    """Replace the installed protocol by one without slot numbers; the rows stay."""
    text, replaced = _NUMBERING.subn(_UNNUMBERED, installation_text())
    assert replaced == 1, "the grant numbers slots in one place"
    await session.execute(text)
    await session.execute(_PLAIN_INDEX)


def _section(numbered: dict[int, float], plain: dict[int, float], sizes: Sizes) -> Section:
    cost = {column(batch): numbered[batch] / plain[batch] - 1 for batch in BATCHES}
    return Section(
        title="slot-numbers: settle and grant with numbered slots, and without",
        columns=tuple(column(batch) for batch in BATCHES),
        rows=(
            Row(name=_NUMBERED, unit="µs", cells={column(b): 1e6 * each for b, each in numbered.items()}),
            Row(name=_NOT_NUMBERED, unit="µs", cells={column(b): 1e6 * each for b, each in plain.items()}),
            Row(name="cost, share", unit="", cells=cost, aims=(Aim(at_most=_AIM_SHARE),)),
        ),
        note=f"medians of {sizes.turns} turns, interleaved; limit {LIMIT}, {QUEUES} queues",
    )
