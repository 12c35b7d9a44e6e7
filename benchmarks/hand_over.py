"""Hand-over: the delay from a finish to the next start at limit 1, and from a single submit to its start.

Finish and start are `completed_at` and `started_at` of the database; the time of a submit is the client's, on
the same machine. The part `clients` repeats the hand-over beside HTTP clients.
"""

import time
from typing import Final

from benchmarks.actions import AT_ONCE, IN_A_RUN, ONE_BY_ONE
from benchmarks.client import load, submit
from benchmarks.http_clients import Answers, clients
from benchmarks.report import DELAY_COLUMNS, Aim, Row, Section, delay_row
from benchmarks.system import Servers, Sizes, System, running_system
from turnstile.stress.check.counts import percentile

_GAPS: Final = """
SELECT extract(epoch FROM e.started_at - lag(e.completed_at) OVER (ORDER BY e.id))::double precision AS gap
FROM ledger.execution e WHERE e.action_ref = $1 AND e.id > $2
"""
_LAST_START: Final = "SELECT extract(epoch FROM max(started_at))::double precision FROM ledger.execution"
_AIM_BESIDE_CLIENTS: Final = 2


class _HandOver:
    """Executions of one action at limit 1, which wait before the first may start: no admission interferes."""

    def __init__(self, system: System, ref: str = ONE_BY_ONE) -> None:
        self._system, self._ref = system, ref
        self._after_id = 0
        self._expected = 0

    async def prepare(self, count: int) -> None:
        """Let so many wait."""
        self._after_id = await self._system.api.newest_id()
        self._expected = (await self._system.totals([self._ref]))[self._ref] + count
        await self._system.limit(self._ref, 0)
        await submit(self._system.publisher, load([self._ref], count).messages)
        await self._system.all_wait([self._ref], count)

    async def run(self) -> list[float]:
        """Let them run; return the seconds from each end to the next start."""
        await self._system.limit(self._ref, 1)
        await self._system.all_ended({self._ref: self._expected})
        found = await self._system.session.fetch(_GAPS, self._ref, self._after_id)
        return [row["gap"] for row in found if row["gap"] is not None]


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Hand over one after the other, then submit one at a time."""
    queued, submits = sizes.share(20), sizes.share(50)
    gaps: dict[str, list[float]] = {}
    delays = []
    async with running_system(servers, "hand-over", sizes) as system:
        for ref in (IN_A_RUN, ONE_BY_ONE):
            hand_over = _HandOver(system, ref)
            # A run begins when it is known how long an execution takes.
            for count in (10, queued):
                await hand_over.prepare(count)
                gaps[ref] = await hand_over.run()
        for number, message in enumerate(load([AT_ONCE], submits).messages, start=1):
            began_at = time.time()
            await system.publisher.publish([message])
            await system.all_ended({AT_ONCE: number})
            delays.append(await system.session.fetchval(_LAST_START) - began_at)
    rows = (
        (f"finish → next start in a run, limit 1, {queued} queued", gaps[IN_A_RUN], {"p50": 0.05, "p99": 5}),
        ("finish → next start without runs", gaps[ONE_BY_ONE], {"p50": 2.2, "p99": 8}),
        (f"submit → start, idle, {submits} one at a time", delays, {"p50": 3.5}),
    )
    return [
        Section(
            title="hand-over: milliseconds from one to the next",
            columns=DELAY_COLUMNS,
            rows=tuple(
                delay_row(name, seconds, tuple(Aim(at_most=ms, columns=(of,)) for of, ms in aims.items()))
                for name, seconds, aims in rows
            ),
        )
    ]


async def beside_clients(servers: Servers, sizes: Sizes) -> list[Section]:
    """Hand over without clients and beside them, in turn, for a number of rounds."""
    queued = sizes.share(10)
    alone: list[float] = []
    accompanied: list[float] = []
    answers = Answers()
    async with running_system(servers, "clients", sizes) as system:
        port = system.executors[0].port
        assert port is not None
        hand_over = _HandOver(system)
        await hand_over.prepare(10)
        await hand_over.run()
        for _ in range(sizes.rounds):
            await hand_over.prepare(queued)
            alone += await hand_over.run()
            await hand_over.prepare(queued)
            async with clients(port, sizes.clients, answers):
                accompanied += await hand_over.run()
    ratio = (percentile(accompanied, 0.99) or 0.0) / (percentile(alone, 0.99) or 1.0)
    return [
        Section(
            title=f"clients: a hand-over at limit 1 beside {sizes.clients} clients, a request a second each",
            columns=DELAY_COLUMNS,
            rows=(
                delay_row("without them", alone, ()),
                delay_row("beside them", accompanied, ()),
                Row(
                    name="ratio to without them",
                    cells={"p99": ratio},
                    aims=(Aim(at_most=_AIM_BESIDE_CLIENTS),),
                ),
                delay_row(
                    f"{len(answers.seconds)} answers, {answers.refusals} refusals", answers.seconds, ()
                ),
            ),
            note="2 of 3 requests list, 1 submits; clients, servers and services share the processors",
        )
    ]
