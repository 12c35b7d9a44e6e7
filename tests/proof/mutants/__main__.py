"""`make mutants`: plants each bug in turn; its test must fail, and passes without it."""

import argparse
import sys
from functools import partial

from tests.proof.mutants.trial import Fate, attempt, copied_tree, run_tests, servers
from tests.proof.planted import PlantedBug, planted_bugs
from tests.proof.trials import run_trials


def main() -> int:
    """Try the bugs whose names contain one of the given words, or all."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only bugs whose name contains one of these")
    words = parser.parse_args().words
    chosen = [
        each for each in planted_bugs("mutants") if not words or any(word in each.name for word in words)
    ]
    with servers() as environment, copied_tree() as tree:

        def clean() -> list[str]:
            tests = sorted({bug.found_by for bug in chosen})
            return run_tests(tests, tree, environment).unless(Fate.SURVIVED)

        def caught(bug: PlantedBug) -> list[str]:
            return attempt(bug, tree, environment).unless(Fate.CAUGHT)

        trials = ((bug.name, partial(caught, bug)) for bug in chosen)
        return run_trials([("without a bug", clean), *trials])


if __name__ == "__main__":
    sys.exit(main())
