"""`python -m tests.chaos`: run seeds one after the other, and say what came of each.

Exit code 0: no violation. 1: a violation, or the harness itself failed. 130: somebody broke it off; then too
nothing is left but the folder with the logs.
"""

import argparse
import asyncio
import random
import signal
import sys
import traceback

from tests.chaos.outcome import run_seed
from tests.chaos.report import shown
from tests.chaos.schedule import Shape

PATIENCE = 1.0


def main() -> int:
    """Run the seeds that the command line names."""
    options = _options()
    first = random.randrange(100_000) if options.seed is None else options.seed
    shape = Shape(seconds=options.seconds)
    try:
        return asyncio.run(_run_all(first, options.seeds, shape, options.keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("broken off\n")
        return 130


async def _run_all(first: int, seeds: int, shape: Shape, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    bad: list[int] = []
    for seed in range(first, first + seeds):
        try:
            outcome = await run_seed(seed, shape, patience=PATIENCE, keep=keep)
        except Exception:  # noqa: BLE001  one seed that could not be run is a failure, and the next one may tell more
            traceback.print_exc()
            bad.append(seed)
            continue
        sys.stdout.write(shown(outcome) + "\n")
        sys.stdout.flush()
        if outcome.violations:
            bad.append(seed)
    verdict = f"violations in seeds {', '.join(map(str, bad))}" if bad else "no violations"
    sys.stdout.write(f"{seeds} seeds from {first}: {verdict}\n")
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; without it a random one")
    parser.add_argument("--seeds", type=int, default=5, help="how many, counting up (default: 5)")
    parser.add_argument("--seconds", type=float, default=120, help="load and faults per seed (default: 120)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a good run too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
