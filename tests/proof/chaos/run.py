"""One seed: stand everything up, load it, break it, heal it, let it drain, judge it.

In: a seed, the shape of the run, a folder. Out: an `Outcome`. Next: `checks` judges, `report` prints.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg

from tests.proof.chaos.draining import drained
from tests.proof.chaos.faults import Injected, inject
from tests.proof.chaos.ground import LEASE_SECONDS, Ground
from tests.proof.chaos.load import LIMITS, plan_load, restored
from tests.proof.chaos.schedule import Shape, plan_faults
from tests.proof.chaos.sent import Log
from tests.proof.chaos.submitters import change_all, send_all

DRAIN_BOUND_SECONDS: Final = 2 * LEASE_SECONDS + 30.0
"""So long after the last fault nothing is left to do."""
_DRAIN_PATIENCE_SECONDS: Final = 3 * DRAIN_BOUND_SECONDS
"""What drains too late is wrong, but of what never drained the history would be wrong in a hundred ways."""
_ANSWERED_SECONDS: Final = 60.0
"""So long after the last fault every submitter has its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What happened in a run, before anybody judges it."""

    began_at: datetime
    injected: list[Injected]
    log: Log
    drained_in_seconds: float
    left: dict[str, int]


async def take_course(ground: Ground, seed: int, shape: Shape) -> Course:
    """Load and break the system, heal it, and let it drain."""
    now = asyncio.get_running_loop().time
    log, began = Log(), now()
    began_at = datetime.now(UTC)
    sending = asyncio.create_task(send_all(ground, plan_load(seed, shape.seconds), log), name="load")
    try:
        injected = await inject(ground, plan_faults(seed, shape))
        # What is asked after the last fault cannot have been done before.
        over_at = max(now(), began + shape.seconds)
        async with asyncio.timeout(_ANSWERED_SECONDS):
            await asyncio.shield(sending)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def restore() -> None:
        async with asyncio.timeout(_ANSWERED_SECONDS):
            await change_all(ground, restored(), log)

    await restore()
    connection = await asyncpg.connect(ground.database_url)
    try:
        left = await drained(connection, LIMITS, restore, patience_seconds=_DRAIN_PATIENCE_SECONDS)
    finally:
        await connection.close()
    return Course(
        began_at=began_at,
        injected=injected,
        log=log,
        drained_in_seconds=now() - over_at,
        left=left,
    )
