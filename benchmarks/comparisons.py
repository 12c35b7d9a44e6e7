"""Parts of one form: loads that run in turn on one system, a column each, and their ratios.

`throughput`, `limit-bound`, `keys` and `gates` differ in their loads, their ratios and their aims, and
`replicas` in the number of executors. Out: a section with the ratios above rate, CPU and WAL.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.actions import (
    JOB_SECONDS,
    KEYED,
    LIMIT,
    LIMITED,
    LOOSE,
    SHARED,
    SHARED_UNITS,
    SPREAD,
    TIMED,
    TOTALED,
    UNLIMITED,
)
from benchmarks.client import load
from benchmarks.report import Aim, Row, Section
from benchmarks.run import Run, Runs, rates_of, ratio_rows, rows_of
from benchmarks.system import Servers, Sizes, System, running_system
from turnstile.stress.installation import action_path, resource_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A load: these actions in turn, and so many concurrency keys."""

    refs: tuple[str, ...]
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A part: its loads by the name of their column, and what is shown of their runs."""

    title: str
    kinds: Mapping[str, Kind]
    ratios: Callable[[Runs], list[Row]]
    """The rows above the absolute values."""
    aims: Mapping[str, tuple[Aim, ...]] = field(default_factory=dict)
    """By the names of absolute values."""
    part: int = 1
    """A run has this part of the executions."""
    prepare: Callable[[System], Awaitable[None]] | None = None
    """Changes definitions before the first load."""

    async def measure(self, servers: Servers, sizes: Sizes) -> list[Section]:
        """Run the loads in turn, for a number of rounds."""
        count = sizes.share(self.part)
        async with running_system(servers, "comparison", sizes) as system:
            if self.prepare is not None:
                await self.prepare(system)
            runs = await _in_turn(system, self.kinds, count, sizes.rounds)
        return [self.section_of(runs, count)]

    def section_of(self, runs: Runs, count: int) -> Section:
        """Return the ratios above the absolute values."""
        return Section(
            title=f"{self.title}: {count:,} executions of each kind, 1 executor, 2 workers",
            columns=tuple(runs),
            rows=(*self.ratios(runs), *rows_of(runs, aims=self.aims)),
        )


async def _in_turn(
    system: System, kinds: Mapping[str, Kind], count: int, rounds: int
) -> dict[str, list[Run]]:
    """Run each kind in turn, there and back: the servers slow down by some percent while they are used."""
    runs: dict[str, list[Run]] = {name: [] for name in kinds}
    for kind in kinds.values():
        await system.warm_up(kind.refs, count, keys=min(kind.keys, count))
    for _ in range(rounds):
        for name in (*kinds, *reversed(list(kinds))):
            kind = kinds[name]
            runs[name].append(await system.run(load(kind.refs, count, keys=kind.keys)))
    return runs


_LIMITED: Final = "10 actions, limit 4"
_LOOSE: Final = "limit 10,000"
_UNLIMITED: Final = "no limit"
_KEYS: Final = {f"{keys:,} keys": keys for keys in (10, 1000, 10_000)}
_SHARED: Final = f"one resource of {SHARED_UNITS}"
_SPREAD: Final = "keys, limit 2"
_TOTALED: Final = "keys, limit 2, fair total"
_TOTAL: Final = 200
_SLOTS: Final = len(TIMED) * LIMIT
_IDEAL: Final = _SLOTS / JOB_SECONDS


def _ratio(name: str, runs: Runs, of: str, to: str, at_least: float) -> Row:
    rates = rates_of(runs)
    return Row(name=name, cells={of: rates[of] / rates[to]}, aims=(Aim(at_least=at_least),))


def _shares_of_the_ideal(runs: Runs) -> list[Row]:
    rates = rates_of(runs)
    between = {name: 1000 * (_SLOTS / rate - JOB_SECONDS) for name, rate in rates.items()}
    return [
        Row(
            name=f"share of the ideal, {_IDEAL:,.0f}/s",
            cells={name: rate / _IDEAL for name, rate in rates.items()},
            aims=(Aim(at_least=0.93),),
        ),
        Row(name="between two jobs of a slot", unit="ms", cells=between),
    ]


async def _share(system: System) -> None:
    """Let actions share a resource, and let keys share a total."""
    await system.api.put(resource_path("bench"), {"capacity": SHARED_UNITS})
    for ref in SHARED:
        await system.api.change(action_path(ref), {"uses": [{"resource": "bench"}]})
    await system.api.change(action_path(TOTALED), {"max_concurrent_total": _TOTAL, "order": "fair"})


THROUGHPUT: Final = Comparison(
    title="throughput, no-op, over 10 actions",
    kinds={
        _LIMITED: Kind(refs=LIMITED),
        _LOOSE: Kind(refs=LOOSE),
        _UNLIMITED: Kind(refs=UNLIMITED),
    },
    ratios=lambda runs: [
        _ratio("limit above the demand, share of no limit", runs, _LOOSE, _UNLIMITED, at_least=0.9)
    ],
    aims={
        "executions": (Aim(at_least=5500, columns=(_LIMITED,)), Aim(at_least=6000, columns=(_UNLIMITED,))),
        "CPU, executors": (Aim(at_most=70, columns=(_LIMITED, _UNLIMITED)),),
        "CPU, all": (Aim(at_most=330, columns=(_LIMITED,)), Aim(at_most=320, columns=(_UNLIMITED,))),
        "WAL": (Aim(at_most=950, columns=(_LIMITED, _UNLIMITED)),),
    },
)
LIMIT_BOUND: Final = Comparison(
    title="limit-bound, jobs of 20 ms, over 10 actions",
    kinds={_LIMITED: Kind(refs=TIMED)},
    ratios=_shares_of_the_ideal,
    part=2,
)
KEYS: Final = Comparison(
    title="keys, no-op, one action, limit 1 per concurrency key",
    kinds={_LIMITED: Kind(refs=LIMITED)}
    | {name: Kind(refs=(KEYED,), keys=keys) for name, keys in _KEYS.items()},
    # No aim for the first: ten keys have 10 slots and the ten actions 40.
    ratios=lambda runs: ratio_rows(runs, _LIMITED, aimed=tuple(_KEYS)[1:]),
)
GATES: Final = Comparison(
    title=f"gates, no-op; 1,000 keys; a total of {_TOTAL}",
    kinds={
        _LIMITED: Kind(refs=LIMITED),
        _SHARED: Kind(refs=SHARED),
        _SPREAD: Kind(refs=(SPREAD,), keys=1000),
        _TOTALED: Kind(refs=(TOTALED,), keys=1000),
    },
    ratios=lambda runs: [
        _ratio("rate, ratio to limit 4", runs, _SHARED, _LIMITED, at_least=0.7),
        _ratio("rate, ratio to no total", runs, _TOTALED, _SPREAD, at_least=0.5),
    ],
    # 2.5 times the rates of the core before.
    aims={
        "executions": (
            Aim(at_least=2.5 * 930, columns=(_SHARED,)),
            Aim(at_least=2.5 * 1056, columns=(_TOTALED,)),
        )
    },
    prepare=_share,
)


async def replicas(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run the same loads with each number of executors on a system of its own, there and back."""
    kinds = {_LIMITED: Kind(refs=LIMITED), _UNLIMITED: Kind(refs=UNLIMITED)}
    count = sizes.share(2)
    found: dict[str, dict[str, list[Run]]] = {name: {} for name in kinds}
    for number in (*sizes.executors, *reversed(sizes.executors)):
        column = f"{number} executor{'s' if number > 1 else ''}"
        async with running_system(servers, "replicas", sizes, executors=number) as system:
            for name, runs in (await _in_turn(system, kinds, count, sizes.rounds)).items():
                found[name].setdefault(column, []).extend(runs)
    return [
        Section(
            title=f"replicas, {name}: {count:,} no-op executions over 10 actions, 2 workers",
            columns=tuple(runs),
            rows=(*ratio_rows(runs, next(iter(runs))), *rows_of(runs)),
        )
        for name, runs in found.items()
    ]
