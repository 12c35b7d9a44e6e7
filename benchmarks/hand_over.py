"""Hand-over: the delay from a finish to the next start at limit 1, and from a single submit to its start.

Finish and start are `completed_at` and `started_at` of the database; the time of a submit is the client's, on
the same machine.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.actions import AT_ONCE, IN_A_RUN, ONE_BY_ONE
from benchmarks.client import (
    all_ended,
    completed,
    database_session,
    load,
    publishing,
    submit,
    wait_until_queued,
)
from benchmarks.report import DELAY_COLUMNS, Aim, Section, delay_row
from benchmarks.system import Servers, Sizes, System, running_system
from turnstile.common.broker.publisher import Publisher

if TYPE_CHECKING:
    import asyncpg

_GAPS = """
SELECT extract(epoch FROM e.started_at - lag(e.completed_at) OVER (ORDER BY e.id))::double precision AS gap
FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2
"""
_LAST_START = "SELECT extract(epoch FROM max(started_at))::double precision FROM ledger.execution"


class HandOver:
    """Executions of one action at limit 1, which wait before the first may start: no admission interferes."""

    def __init__(
        self,
        system: System,
        publisher: Publisher,
        session: "asyncpg.Connection[asyncpg.Record]",
        *,
        ref: str = ONE_BY_ONE,
        deadline_seconds: float,
    ) -> None:
        self._ref = ref
        self._system, self._publisher, self._session = system, publisher, session
        self._deadline_seconds = deadline_seconds
        self._after_id = 0
        self._expected = 0

    async def prepare(self, count: int) -> None:
        """Let so many wait."""
        api = self._system.api
        self._after_id = await api.newest_id()
        self._expected = (await completed(api, [self._ref]))[self._ref] + count
        await self._system.limit(self._ref, 0)
        await submit(self._publisher, load([self._ref], count).messages)
        await wait_until_queued(api, [self._ref], count, deadline_seconds=self._deadline_seconds)

    async def run(self) -> list[float]:
        """Let them run; return the seconds from each end to the next start."""
        await self._system.limit(self._ref, 1)
        await all_ended(
            self._system.api, {self._ref: self._expected}, deadline_seconds=self._deadline_seconds
        )
        found = await self._session.fetch(_GAPS, self._ref, self._after_id)
        return [row["gap"] for row in found if row["gap"] is not None]


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Hand over one after the other, then submit one at a time."""
    async with (
        servers.deployment("hand-over") as deployment,
        running_system(deployment) as system,
        publishing(deployment.amqp_url) as publisher,
        database_session(deployment.database_url) as connection,
    ):
        gaps: dict[str, list[float]] = {}
        for ref in (IN_A_RUN, ONE_BY_ONE):
            hand_over = HandOver(
                system, publisher, connection, ref=ref, deadline_seconds=sizes.deadline_seconds
            )
            # A run begins when it is known how long an execution takes.
            for count in (10, sizes.queued):
                await hand_over.prepare(count)
                gaps[ref] = await hand_over.run()

        delays = []
        for number, message in enumerate(load([AT_ONCE], sizes.submits).messages, start=1):
            began_at = time.time()
            await publisher.publish([message])
            await all_ended(system.api, {AT_ONCE: number}, deadline_seconds=sizes.deadline_seconds)
            delays.append(await connection.fetchval(_LAST_START) - began_at)
    return [_section(gaps, delays, sizes)]


def _section(gaps: Mapping[str, Sequence[float]], delays: Sequence[float], sizes: Sizes) -> Section:
    in_a_run = (Aim(at_most=0.05, columns=("p50",)), Aim(at_most=5, columns=("p99",)))
    one_by_one = (Aim(at_most=2.2, columns=("p50",)), Aim(at_most=8, columns=("p99",)))
    return Section(
        title="hand-over: milliseconds from one to the next",
        columns=DELAY_COLUMNS,
        rows=(
            delay_row(
                f"finish → next start in a run, limit 1, {sizes.queued} queued", gaps[IN_A_RUN], in_a_run
            ),
            delay_row("finish → next start without runs", gaps[ONE_BY_ONE], one_by_one),
            delay_row(
                f"submit → start, idle, {sizes.submits} one at a time",
                delays,
                (Aim(at_most=3.5, columns=("p50",)),),
            ),
        ),
    )
