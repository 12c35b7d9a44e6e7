"""Keys: one action with many concurrency keys, limit 1 each, compared with ten actions at limit 4.

Out: rate and CPU per execution as ratios to the ten actions. Every key is used once before it is measured;
that first use, which creates the queue of the key, is measured for the largest number of keys.
"""

from typing import Final

from benchmarks.actions import KEYED, LIMITED
from benchmarks.client import load
from benchmarks.report import Section
from benchmarks.run import WARM_UP_MAX, Run, Runs, measured_system, ratio_rows, rows_of
from benchmarks.system import Servers, Sizes

_ACTIONS: Final = "10 actions, limit 4"


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run the ten actions and each number of keys in turn, for a number of rounds."""
    names = {_column(keys): keys for keys in sizes.keys}
    new = f"{max(sizes.keys):,} new keys"
    runs: dict[str, list[Run]] = {name: [] for name in (_ACTIONS, *names, new)}
    async with measured_system(servers, "keys", deadline_seconds=sizes.deadline_seconds) as turnstile:
        await turnstile.run(load(LIMITED, min(WARM_UP_MAX, sizes.keyed)))
        await turnstile.run(load([KEYED], min(WARM_UP_MAX, sizes.keyed), keys=10))
        runs[new].append(await turnstile.run(load([KEYED], max(sizes.keys), keys=max(sizes.keys))))
        for _ in range(sizes.rounds):
            runs[_ACTIONS].append(await turnstile.run(load(LIMITED, sizes.keyed)))
            for name, keys in names.items():
                runs[name].append(await turnstile.run(load([KEYED], sizes.keyed, keys=keys)))
    return [section_of(runs, count=sizes.keyed, aimed=tuple(names))]


def _column(keys: int) -> str:
    return f"{keys:,} keys"


def section_of(runs: Runs, *, count: int, aimed: tuple[str, ...]) -> Section:
    """Compare each number of keys with the ten actions."""
    return Section(
        title=f"keys: {count:,} no-op executions of one action, limit 1 per concurrency key",
        columns=tuple(runs),
        rows=(
            # No aim for the first: ten keys have 10 slots and the ten actions 40.
            *ratio_rows(runs, _ACTIONS, label="the actions", aimed=aimed[1:]),
            *rows_of(runs),
        ),
        note="new keys: their first executions, which create the queues",
    )
