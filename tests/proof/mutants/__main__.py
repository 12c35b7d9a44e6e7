"""`make mutants`: plants each defect in turn and prints the kill rate. Exit code 1 unless it is 100 %."""

import argparse
import sys

from tests.proof.mutants.defects import DEFECTS
from tests.proof.mutants.trial import Fate, attempt, copied_tree, run_tests, servers


def main() -> int:
    """Try the defects whose names contain one of the given words, or all."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only defects whose name contains one of these")
    words = parser.parse_args().words
    chosen = [d for d in DEFECTS if not words or any(word in d.name for word in words)]
    with servers() as environment, copied_tree() as tree:
        clean = run_tests(sorted({defect.caught_by for defect in chosen}), tree, environment)
        print(f"without a defect: {clean.seconds:.0f} s", flush=True)
        if clean.fate is not Fate.SURVIVED:
            print(clean.output)
            return 1
        caught = 0
        for defect in chosen:
            trial = attempt(defect, tree, environment)
            caught += trial.fate is Fate.CAUGHT
            print(f"{trial.fate:9} {trial.seconds:5.0f} s  {defect.name}", flush=True)
            if trial.fate is Fate.BROKEN:
                print(trial.output)
    print(f"kill rate: {caught} of {len(chosen)} = {100 * caught / max(1, len(chosen)):.0f} %")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
