"""Throughput: no-op executions over ten actions, beside the no-logic loop on the same servers.

Out: executions/s of each, their ratio, and the CPU that each process spent on an execution, which is what
shows where the next gain lies. Next: `races` runs them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.actions import LIMITED, LOOSE, UNLIMITED
from benchmarks.client import requests
from benchmarks.ground import Ground
from benchmarks.machine import cpu_seconds
from benchmarks.measures import Aim, Row, Section
from benchmarks.races import Contestant, no_logic_loop, our_system
from benchmarks.sizes import Sizes

_LIMITED: Final = "limit 4"
_LOOSE: Final = "limit 10,000"
_UNLIMITED: Final = "no limit"
_LOOP: Final = "no logic"
_SHORT_LOOP: Final = "no logic, untold"
_COLUMNS: Final = (_LIMITED, _LOOSE, _UNLIMITED, _LOOP, _SHORT_LOOP)
_OURS: Final = (_LIMITED, _UNLIMITED)
_WARM_UP_MAX: Final = 500
# Persistent, and advisory where nobody binds them: what each execution sends.
_MESSAGES: Final = {
    _LIMITED: (3, 4),
    _LOOSE: (3, 4),
    _UNLIMITED: (3, 4),
    _LOOP: (4, 0),
    _SHORT_LOOP: (3, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One race: its length, and the CPU of each part meanwhile."""

    seconds: float
    cpu_seconds: Mapping[str, float]

    def cpu_of(self, part: str) -> float:
        """Return the CPU seconds of a part, or of all."""
        return sum(self.cpu_seconds.values()) if part == "all" else self.cpu_seconds[part]


async def measure(ground: Ground, sizes: Sizes) -> list[Section]:
    """Race all contestants in turn, as many rounds as asked for."""
    deadline_seconds = sizes.deadline_seconds
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(our_system(ground, deadline_seconds=deadline_seconds))
        loop, short = [
            await stack.enter_async_context(
                no_logic_loop(ground, told=told, deadline_seconds=deadline_seconds)
            )
            for told in (True, False)
        ]
        contestants = {
            _LIMITED: (system, LIMITED),
            _LOOSE: (system, LOOSE),
            _UNLIMITED: (system, UNLIMITED),
            _LOOP: (loop, LIMITED),
            _SHORT_LOOP: (short, LIMITED),
        }
        for contestant, refs in contestants.values():
            await contestant.race(requests(refs, min(_WARM_UP_MAX, sizes.executions)))
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for _ in range(sizes.rounds):
            for name, (contestant, refs) in contestants.items():
                runs[name].append(await _timed(ground, contestant, refs, sizes.executions))
    return [section_of(runs, count=sizes.executions)]


async def _timed(ground: Ground, contestant: Contestant, refs: Sequence[str], count: int) -> Run:
    messages = requests(refs, count)
    parts = {**contestant.pids, **ground.pids}
    before = {name: cpu_seconds(pids) for name, pids in parts.items()}
    client_before = time.process_time()
    seconds = await contestant.race(messages)
    used = {name: cpu_seconds(pids) - before[name] for name, pids in parts.items()}
    return Run(seconds=seconds, cpu_seconds={**used, "client": time.process_time() - client_before})


def section_of(runs: Mapping[str, Sequence[Run]], *, count: int) -> Section:
    """Compare the runs of all contestants."""
    rates = {name: count / median(run.seconds for run in of) for name, of in runs.items()}
    rows = [
        Row(name="executions", unit="1/s", cells=rates, aims=(Aim(at_least=1500, columns=_OURS),)),
        Row(
            name="share of the no-logic loop",
            unit="",
            cells={name: rates[name] / rates[_LOOP] for name in _OURS},
            aims=(Aim(at_least=0.6),),
        ),
        Row(
            name="limit above the demand, share of no limit",
            unit="",
            cells={_LOOSE: rates[_LOOSE] / rates[_UNLIMITED]},
            aims=(Aim(at_least=0.9),),
        ),
        Row(
            name="share of it, client untold",
            unit="",
            cells={name: rates[name] / rates[_SHORT_LOOP] for name in _OURS},
        ),
    ]
    for number, kind in enumerate(("persistent", "advisory")):
        sent = {name: float(each[number]) for name, each in _MESSAGES.items()}
        rows.append(Row(name=f"{kind} messages", unit="per execution", cells=sent))
    for part in (*next(iter(runs.values()))[0].cpu_seconds, "all"):
        cells = {name: 1e6 * median(run.cpu_of(part) for run in of) / count for name, of in runs.items()}
        rows.append(Row(name=f"CPU, {part}", unit="µs per execution", cells=cells))
    busy = {name: median(run.cpu_of("all") / run.seconds for run in of) for name, of in runs.items()}
    rows.append(Row(name="cores busy", unit=f"of {os.cpu_count()}", cells=busy))
    return Section(
        title=f"throughput: {count:,} no-op executions over 10 actions, 1 executor, 2 workers",
        columns=_COLUMNS,
        rows=tuple(rows),
        note="no logic: the same transport, batches and row writes, nothing decided",
    )
