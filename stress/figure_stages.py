"""The stages of which each yields one figure, and the load that all stages are made of.

In: an `Asked`, and the size of a stage. Out: `Stage`s. Pure. `presets` puts them together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from turnstile.stress.asked import Asked
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import Load, PlannedFault, Purpose, Stage

NO_OP: Final = DurationMix.always(0.0)
_LIFT_AFTER: Final = 1_000
"""So many hand-overs behind a line make the figure; the rest of it is drained without a limit."""
_RATE_MAX: Final = 100.0
"""Requests per second under faults: far below what two cores bear, so that the fault shows, not the load."""
_RECOVERY_MIX: Final = DurationMix.parse("50% 50ms, 40% 200ms, 10% 1s")


def throughput(asked: Asked, executions: int) -> Iterator[Stage]:
    """Yield the same no-op load under the limit, and without one."""
    load = load_of(asked, executions=executions, mix=NO_OP, keys=0, answered=False)
    limited = Stage(
        name="no-op-limited",
        title=f"No-op executions, limit {asked.limit}",
        purpose=Purpose.THROUGHPUT,
        load=load,
        limit=asked.limit,
    )
    if asked.limit is not None:
        yield limited
    yield replace(limited, name="no-op-unlimited", title="No-op executions, no limit", limit=None)


def hand_over(executions: int) -> Stage:
    """Return the stage in which one waits for the other."""
    load = Load(executions=executions, mix=NO_OP, actions=1, submitters=1, answered=False)
    return Stage(
        name="hand-over",
        title="One at a time",
        purpose=Purpose.HAND_OVER,
        load=load,
        limit=1,
        all_wait_first=True,
    )


def depths(asked: Asked, depths: Iterable[int]) -> Iterator[Stage]:
    """Yield a stage for each length of one line."""
    for depth in depths:
        yield Stage(
            name=f"depth-{depth}",
            title=f"{depth:,} waiting in one queue",
            purpose=Purpose.DEPTH,
            load=Load(executions=depth, mix=NO_OP, actions=1, submitters=asked.submitters, answered=False),
            limit=asked.limit or 4,
            all_wait_first=True,
            drain_without_limit_after=_LIFT_AFTER if depth > 2 * _LIFT_AFTER else None,
        )


def key_counts(asked: Asked, counts: Iterable[int], *, executions: int) -> Iterator[Stage]:
    """Yield a stage for each number of keys of one action; some executions for each key at least."""
    for count in counts:
        load = load_of(
            asked,
            executions=max(executions, 2 * count),
            mix=NO_OP,
            actions=1,
            keys=count,
            answered=False,
        )
        yield Stage(
            name=f"keys-{count}",
            title=f"{count:,} concurrency keys",
            purpose=Purpose.KEYS,
            load=load,
            limit=asked.limit or 4,
        )


def recovery(asked: Asked, faults: tuple[PlannedFault, ...], *, limit: int | None) -> Stage:
    """Return the stage in which faults meet a load that leaves room to recover."""
    load = load_of(asked, executions=1, mix=asked.mix or _RECOVERY_MIX, keys=0)
    seconds = _last_second(faults) + 2 * asked.lease_seconds + 5.0
    return Stage(
        name="recovery",
        title="Faults under a steady load",
        purpose=Purpose.RECOVERY,
        load=paced(load, seconds, asked.rate or _bearable_rate(load, limit)),
        limit=limit,
        faults=faults,
    )


def load_of(
    asked: Asked,
    *,
    executions: int,
    mix: DurationMix,
    actions: int | None = None,
    keys: int | None = None,
    submitters: int | None = None,
    answered: bool = True,
) -> Load:
    """Return a load with what was asked for, but for what is given here."""
    return Load(
        executions=executions,
        mix=mix,
        actions=actions or asked.actions,
        keys=asked.keys if keys is None else keys,
        submitters=submitters or asked.submitters,
        answered=answered,
    )


def paced(load: Load, seconds: float, rate: float) -> Load:
    """Return the load that lasts so long at so many requests per second."""
    return replace(load, executions=round(seconds * rate), rate=rate)


def _last_second(faults: tuple[PlannedFault, ...]) -> float:
    return max((fault.at_seconds + fault.lasting_seconds for fault in faults), default=0.0)


def _bearable_rate(load: Load, limit: int | None) -> float:
    """Return half of what the slots can take: what piles up in a fault is worked off after it."""
    if limit is None or load.mix.mean_seconds == 0:
        return _RATE_MAX
    return min(_RATE_MAX, limit * load.queues / load.mix.mean_seconds / 2)
