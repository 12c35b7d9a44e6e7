"""`python -m tests.proof.chaos`: run seeds one after the other, and report each.

Two modes: `faults` breaks the system, `neighbours` misbehave beside it. Without `--mode` both run: every
seed of faults, then the first seed of neighbours.

Of an interrupted run only the folder with the logs is left.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeAlias

from tests.proof.chaos import schedule
from tests.proof.chaos.neighbours import schedule as neighbours_schedule
from tests.proof.chaos.neighbours.run import run_neighbours
from tests.proof.chaos.report import shown
from tests.proof.chaos.run import Outcome, run_seed
from tests.proof.trials import run_trials

PATIENCE = 1.0
Run: TypeAlias = Callable[[], Coroutine[Any, Any, Outcome]]


def main() -> int:
    """Run the seeds that the command line names."""
    options = _options()
    first = random.randrange(100_000) if options.seed is None else options.seed
    return run_trials((name, partial(_violations, run)) for name, run in _runs(options, first))


def _violations(run: Run) -> list[str]:
    outcome = asyncio.run(run())
    print(shown(outcome), flush=True)
    return outcome.violations[:1]


def _runs(options: argparse.Namespace, first: int) -> Iterator[tuple[str, Run]]:
    """Yield the name of each run, and the run."""
    if options.mode != "neighbours":
        shape = schedule.Shape(seconds=options.seconds)
        for seed in range(first, first + options.seeds):
            yield str(seed), partial(run_seed, seed, shape, patience=PATIENCE, keep=options.keep)
    if options.mode != "faults":
        every = neighbours_schedule.Kind
        kinds = tuple(kind for kind in every if kind in options.only) or tuple(every)
        beside = neighbours_schedule.Shape(
            seconds=options.seconds, kinds=kinds, at_once=min(len(kinds), neighbours_schedule.AT_ONCE)
        )
        for seed in range(first, first + (options.seeds if options.mode == "neighbours" else 1)):
            run = partial(run_neighbours, seed, beside, patience=PATIENCE, keep=options.keep)
            yield f"{seed} (neighbours)", run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed (default: random)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, counting up (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="duration of load and faults per seed (default: 120)"
    )
    parser.add_argument("--mode", choices=["faults", "neighbours"], help="only this mode (default: both)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KIND",
        choices=[str(kind) for kind in neighbours_schedule.Kind],
        help=f"only neighbours of this kind; may be repeated: {', '.join(neighbours_schedule.Kind)}",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run without violations too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
