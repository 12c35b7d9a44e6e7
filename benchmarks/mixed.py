"""Mixed: whether runs make anything wait longer where jobs or workers differ, against one by one.

Long jobs beside short ones on few worker slots, one action whose jobs are short or long, and one slow worker
of four. Each load runs with runs and with `runs: false`, in turn. Out: the mean time from submission to
start, of all jobs and of the short and the long ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.actions import BIMODAL, BRIEF, LASTING, UNEVEN
from benchmarks.client import Load, load
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes, System, running_system
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
class _Mixture:
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
    _Mixture(name="long beside short", workers=2, refs=(BRIEF, LASTING)),
    _Mixture(name="short or long", workers=2, refs=(BIMODAL,)),
    _Mixture(name="a slow worker of four", workers=4, refs=(UNEVEN,)),
)


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run each load in both ways for a number of rounds."""
    jobs = sizes.share(5)
    found = []
    for mixture in _MIXTURES:
        waits: dict[tuple[str, str], list[float]] = {}
        async with running_system(
            servers, "mixed", sizes, workers=mixture.workers, concurrency=_WORKER_SLOTS
        ) as system:
            for _ in range(sizes.rounds):
                for how in (_WITHOUT, _WITH):
                    for ref, seconds in (await _wait(system, mixture, how, jobs)).items():
                        waits.setdefault((ref, how), []).append(seconds)
        found.append(_section(mixture, {key: median(of) for key, of in waits.items()}, jobs))
    return found


async def _wait(system: System, mixture: _Mixture, how: str, jobs: int) -> dict[str, float]:
    """Return the mean seconds of each action."""
    for ref in mixture.refs:
        await system.api.change(action_path(ref), {"runs": how == _WITH})
    before = await system.api.newest_id()
    await system.run(mixture.load(jobs))
    return {row["action_ref"]: row["seconds"] for row in await system.session.fetch(_WAITING, before)}


def _section(mixture: _Mixture, waits: Mapping[tuple[str, str], float], jobs: int) -> Section:
    rows = []
    for ref in mixture.refs:
        cells = {how: waits[ref, how] for how in (_WITHOUT, _WITH)}
        ratio = {_WITH: cells[_WITH] / cells[_WITHOUT]}
        rows += [
            Row(name=f"{ref}: waiting", unit="s", cells=cells),
            Row(name=f"{ref}: ratio to one by one", cells=ratio, aims=(Aim(at_most=_AIM),)),
        ]
    return Section(
        title=f"mixed, {mixture.name}: {jobs:,} jobs, {mixture.workers} workers of {_WORKER_SLOTS} slots",
        columns=(_WITHOUT, _WITH),
        rows=tuple(rows),
        note="mean seconds from the admission to the start",
    )
