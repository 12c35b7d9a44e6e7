"""Hand-over: the delay from a finish to the next start at limit 1, and from a single submit to its start.

Finish and start are `completed_at` and `started_at` of the database; the time of a submit is the client's, on
the same machine.
"""

import time
from collections.abc import Sequence

from benchmarks.actions import AT_ONCE, ONE_AT_A_TIME
from benchmarks.client import database_session, load, publishing, settled, submit, wait_until_queued
from benchmarks.report import DELAY_COLUMNS, Aim, Section, delay_row
from benchmarks.system import Servers, Sizes, running_system

_GAPS = """
SELECT extract(epoch FROM e.started_at - lag(e.completed_at) OVER (ORDER BY e.id))::double precision AS gap
FROM ledger.execution e WHERE e.action_ref = $1
"""
_LAST_START = "SELECT extract(epoch FROM max(started_at))::double precision FROM ledger.execution"


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Hand over one after the other, then submit one at a time."""
    async with (
        servers.deployment("hand-over") as deployment,
        running_system(deployment) as system,
        publishing(deployment.amqp_url) as publisher,
        database_session(deployment.database_url) as connection,
    ):
        # All wait before the first may start, so that no admission interferes.
        await system.limit(ONE_AT_A_TIME, 0)
        await submit(publisher, load([ONE_AT_A_TIME], sizes.queued).messages)
        await wait_until_queued(
            system.api, [ONE_AT_A_TIME], sizes.queued, deadline_seconds=sizes.deadline_seconds
        )
        await system.limit(ONE_AT_A_TIME, 1)
        await settled(system.api, {ONE_AT_A_TIME: sizes.queued}, deadline_seconds=sizes.deadline_seconds)
        gaps = [row["gap"] for row in await connection.fetch(_GAPS, ONE_AT_A_TIME) if row["gap"] is not None]

        delays = []
        for number, message in enumerate(load([AT_ONCE], sizes.submits).messages, start=1):
            began_at = time.time()
            await publisher.publish([message])
            await settled(system.api, {AT_ONCE: number}, deadline_seconds=sizes.deadline_seconds)
            delays.append(await connection.fetchval(_LAST_START) - began_at)
    return [_section(gaps, delays, sizes)]


def _section(gaps: Sequence[float], delays: Sequence[float], sizes: Sizes) -> Section:
    aims = (Aim(at_most=2.5, columns=("p50",)), Aim(at_most=6, columns=("p99",)))
    return Section(
        title="hand-over: milliseconds from one to the next",
        columns=DELAY_COLUMNS,
        rows=(
            delay_row(f"finish → next start, limit 1, {sizes.queued} queued", gaps, aims),
            delay_row(
                f"submit → start, idle, {sizes.submits} one at a time",
                delays,
                (Aim(at_most=3.5, columns=("p50",)),),
            ),
        ),
    )
