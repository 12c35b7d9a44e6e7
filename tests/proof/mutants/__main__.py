"""`make mutants`: plants each defect in turn; its test must fail, and passes without it."""

import argparse
import sys
from functools import partial

from tests.proof.mutants.defect import Defect
from tests.proof.mutants.defects import DEFECTS
from tests.proof.mutants.trial import Fate, attempt, copied_tree, run_tests, servers
from tests.proof.trials import run_trials


def main() -> int:
    """Try the defects whose names contain one of the given words, or all."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only defects whose name contains one of these")
    words = parser.parse_args().words
    chosen = [each for each in DEFECTS if not words or any(word in each.name for word in words)]
    with servers() as environment, copied_tree() as tree:

        def clean() -> list[str]:
            tests = sorted({defect.caught_by for defect in chosen})
            return run_tests(tests, tree, environment).unless(Fate.SURVIVED)

        def caught(defect: Defect) -> list[str]:
            return attempt(defect, tree, environment).unless(Fate.CAUGHT)

        trials = ((defect.name, partial(caught, defect)) for defect in chosen)
        return run_trials([("without a defect", clean), *trials])


if __name__ == "__main__":
    sys.exit(main())
