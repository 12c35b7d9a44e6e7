"""`python -m tests.proof.simulation`: run seeds one after the other, judge each, and shrink what fails.

Exit code 0: no violation. 1: a violation. Hashes of strings are fixed, so a seed is the same run everywhere.
"""

import argparse
import gc
import os
import sys
import time
from collections import Counter
from functools import partial

from tests.proof.simulation.defects import DEFECTS, caught
from tests.proof.simulation.directed import KINDS, directed_story, mixed_story
from tests.proof.simulation.interference import world_of
from tests.proof.simulation.judge import violations
from tests.proof.simulation.shrink import shortest
from tests.proof.trials import run_trials

_SHOWN = 8
"""Violations of one seed."""
_DEFECT_SECONDS = 20.0
"""Processor time in which a planted bug must be caught."""


def main() -> int:
    """Run the seeds that the command line names."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        arguments = [sys.executable, "-m", "tests.proof.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    options = _options()
    if options.defects:
        return run_trials((each.name, partial(_planted, number)) for number, each in enumerate(DEFECTS))
    first = options.first if options.replay is None else options.replay
    count = options.seeds if options.replay is None else 1
    began, deadline = time.monotonic(), time.monotonic() + 60 * options.minutes
    executions, faults, seeds = 0, 0, 0
    failed: list[int] = []
    kinds: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    gc.freeze()
    for seed in range(first, first + count):
        if time.monotonic() > deadline:
            break
        kind = options.kind
        story = directed_story(kind, seed) if kind else mixed_story(seed, size=options.size)
        if options.replay is not None:
            print(story.describe())
        outcome = world_of(story).run()
        seeds, executions = seeds + 1, executions + len(outcome.postgres.tables.admitted)
        faults += outcome.faults
        runs.update(outcome.runs)
        kinds.update(fault.kind for fault in story.faults)
        broken = violations(outcome)
        if broken:
            failed.append(seed)
            print(f"seed {seed} {story.kind}: {len(broken)} violations, at {time.monotonic() - began:.0f} s")
            print("\n".join(f"  {sentence[:600]}" for sentence in broken[:_SHOWN]))
            if options.shrink_seconds:
                story, broken = shortest(story, broken, seconds=options.shrink_seconds)
                print(f"  the shortest story that was found within {options.shrink_seconds:g} s:")
                print(f"{story.describe()}\n" + "\n".join(f"  {each[:600]}" for each in broken[:_SHOWN]))
            sys.stdout.flush()
            if options.stop:
                break
    seconds, processor_seconds = time.monotonic() - began, time.process_time()
    print(
        f"{seeds} stories, {executions} executions, {faults} faults of {len(kinds)} kinds in {seconds:.0f} s:"
        f" {executions / seconds:.0f} executions/s, {faults / seconds:.1f} faults/s"
        f" ({executions / processor_seconds:.0f} and {faults / processor_seconds:.1f} per processor second)"
    )
    print(", ".join(f"{count} {what}" for what, count in sorted(runs.items())))
    print(
        f"violations in {len(failed)} stories{': seeds ' if failed else ''}{', '.join(map(str, failed[:30]))}"
    )
    return int(bool(failed))


def _planted(number: int) -> list[str]:
    """Plant a bug; return that it was missed, if it was."""
    shown = caught(number, seconds=_DEFECT_SECONDS)
    print(shown or "no story shows its symptom", flush=True)
    return [] if shown else ["missed"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.simulation", description=__doc__)
    parser.add_argument("--defects", action="store_true", help="plant every known bug instead")
    parser.add_argument("--kind", choices=sorted(KINDS), help="directed stories of one kind only")
    parser.add_argument("--seeds", type=int, default=1_000_000, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long at most")
    parser.add_argument("--size", type=float, default=1.0, help="scales the number of executions of a story")
    parser.add_argument("--replay", type=int, help="run this seed only, and print its story")
    parser.add_argument(
        "--shrink-seconds", type=float, default=0.0, help="how long to shrink a failing story"
    )
    parser.add_argument("--stop", action="store_true", help="stop after the first failing story")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
