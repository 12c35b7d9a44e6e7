"""`python -m tests.proof.chaos`: run seeds one after the other, and report each.

Two modes: `faults` breaks the system, `neighbours` misbehave beside it. Without `--mode` both run: every
seed of faults, then the first seed of neighbours.

Exit code 0: no violation. 1: a violation, or the harness itself failed. 130: interrupted; only the folder
with the logs is left.
"""

import argparse
import asyncio
import random
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from tests.proof.chaos import report, schedule
from tests.proof.chaos.neighbours import report as neighbours_report
from tests.proof.chaos.neighbours import schedule as neighbours_schedule
from tests.proof.chaos.neighbours.run import run_neighbours
from tests.proof.chaos.run import run_seed

PATIENCE = 1.0

Run = Callable[[], Awaitable[tuple[str, bool]]]
"""Runs one seed; returns its report, and whether it has violations."""


def main() -> int:
    """Run the seeds that the command line names."""
    options = _options()
    first = random.randrange(100_000) if options.seed is None else options.seed
    try:
        return asyncio.run(_run_all(list(_runs(options, first))))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("interrupted\n")
        return 130


def _runs(options: argparse.Namespace, first: int) -> Iterator[tuple[str, Run]]:
    """Yield the name of each run, and the run."""
    if options.mode != "neighbours":
        shape = schedule.Shape(seconds=options.seconds)
        for seed in range(first, first + options.seeds):
            yield str(seed), partial(_faults, seed, shape, options.keep)
    if options.mode != "faults":
        kinds = tuple(map(neighbours_schedule.Kind, options.only)) or tuple(neighbours_schedule.Kind)
        beside = neighbours_schedule.Shape(
            seconds=options.seconds, kinds=kinds, at_once=min(len(kinds), neighbours_schedule.AT_ONCE)
        )
        seeds = options.seeds if options.mode == "neighbours" else 1
        for seed in range(first, first + seeds):
            yield f"{seed} (neighbours)", partial(_neighbours, seed, beside, options.keep)


async def _faults(seed: int, shape: schedule.Shape, keep: bool) -> tuple[str, bool]:
    outcome = await run_seed(seed, shape, patience=PATIENCE, keep=keep)
    return report.shown(outcome), bool(outcome.violations)


async def _neighbours(seed: int, shape: neighbours_schedule.Shape, keep: bool) -> tuple[str, bool]:
    outcome = await run_neighbours(seed, shape, patience=PATIENCE, keep=keep)
    return neighbours_report.shown(outcome), bool(outcome.violations)


async def _run_all(runs: Sequence[tuple[str, Run]]) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    bad: list[str] = []
    for name, run in runs:
        try:
            text, is_bad = await run()
        except Exception:  # noqa: BLE001  a seed that could not be run is a failure, and the others still run
            traceback.print_exc()
            bad.append(name)
            continue
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if is_bad:
            bad.append(name)
    verdict = f"violations in seeds {', '.join(bad)}" if bad else "no violations"
    sys.stdout.write(f"{len(runs)} seeds from {runs[0][0]}: {verdict}\n")
    return 1 if bad else 0


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
