"""Mixed: whether runs make anything wait longer where jobs or workers differ, against one by one.

Long jobs beside short ones on few worker slots, one action whose jobs are short or long, and one slow worker
of four. Each load runs with runs and with `runs: false`, in turn. Out: the mean time from submission to
start, of all jobs and of the short and the long ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import asyncpg

from benchmarks.actions import BIMODAL, BRIEF, LASTING, UNEVEN
from benchmarks.client import Load, database_session, load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import MeasuredSystem, measured_system
from benchmarks.system import Servers, Sizes
from turnstile.stress.installation import action_path

_AIM: Final = 1.05
_WITH: Final = "with runs"
_WITHOUT: Final = "one by one"
_LONG_JOBS: Final = 12
_WORKER_SLOTS: Final = 5
_WAITING: Final = """
SELECT e.action_ref, avg(extract(epoch FROM e.started_at - e.queued_at))::double precision AS seconds
FROM ledger.execution e WHERE e.id > $1 GROUP BY e.action_ref
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A load, and the workers for it."""

    name: str
    workers: int
    refs: tuple[str, ...]

    def load(self, jobs: int) -> Load:
        """Return the jobs; long ones beside short ones come among the first."""
        short = load([ref for ref in self.refs if ref != LASTING], jobs)
        if LASTING not in self.refs:
            return short
        long = load([LASTING], _LONG_JOBS)
        messages = [*short.messages[: jobs // 10], *long.messages, *short.messages[jobs // 10 :]]
        return Load(messages=messages, counts={**short.counts, **long.counts})


_MIXTURES: Final = (
    Mixture(name="long beside short", workers=2, refs=(BRIEF, LASTING)),
    Mixture(name="short or long", workers=2, refs=(BIMODAL,)),
    Mixture(name="a slow worker of four", workers=4, refs=(UNEVEN,)),
)
Waits = Mapping[str, Mapping[str, float]]
"""Mean seconds by action, by how its jobs were granted."""


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run each load in both ways for a number of rounds."""
    return [section_of(each, await _waits(servers, each, sizes), sizes.mixed) for each in _MIXTURES]


async def _waits(servers: Servers, mixture: Mixture, sizes: Sizes) -> Waits:
    found: dict[str, dict[str, list[float]]] = {_WITHOUT: {}, _WITH: {}}
    async with (
        measured_system(
            servers,
            "mixed",
            deadline_seconds=sizes.deadline_seconds,
            workers=mixture.workers,
            concurrency=_WORKER_SLOTS,
        ) as turnstile,
        database_session(turnstile.deployment.database_url) as session,
    ):
        for _ in range(sizes.rounds):
            for how, of_action in found.items():
                for ref, seconds in (await _wait(turnstile, session, mixture, how, sizes.mixed)).items():
                    of_action.setdefault(ref, []).append(seconds)
    return {
        how: {ref: median(seconds) for ref, seconds in of_action.items()} for how, of_action in found.items()
    }


async def _wait(
    turnstile: MeasuredSystem,
    session: "asyncpg.Connection[asyncpg.Record]",
    mixture: Mixture,
    how: str,
    jobs: int,
) -> dict[str, float]:
    api = turnstile.system.api
    for ref in mixture.refs:
        await api.change(action_path(ref), {"runs": how == _WITH})
    before = await api.newest_id()
    await turnstile.run(mixture.load(jobs))
    rows = await session.fetch(_WAITING, before)
    return {row["action_ref"]: row["seconds"] for row in rows}


def section_of(mixture: Mixture, waits: Waits, jobs: int) -> Section:
    """Compare the mean waiting times of each action."""
    rows = []
    for ref in mixture.refs:
        one_by_one, in_runs = waits[_WITHOUT][ref], waits[_WITH][ref]
        rows += [
            Row(name=f"{ref}: waiting", unit="s", cells={_WITHOUT: one_by_one, _WITH: in_runs}),
            Row(
                name=f"{ref}: ratio to one by one",
                cells={_WITH: in_runs / one_by_one},
                aims=(Aim(at_most=_AIM),),
            ),
        ]
    return Section(
        title=f"mixed, {mixture.name}: {jobs:,} jobs, {mixture.workers} workers of {_WORKER_SLOTS} slots",
        columns=(_WITHOUT, _WITH),
        rows=tuple(rows),
        note="mean seconds from the admission to the start",
    )
