"""Runs stories with one planted bug: `python -m tests.proof.simulation.planted NUMBER SEED,SEED,...`.

Exit code 1: a story showed a violation, which is printed. 0: none did.
"""

import sys

from tests.proof.simulation.defects import DEFECTS, plant

if __name__ == "__main__":
    plant(DEFECTS[int(sys.argv[1])])
    from tests.proof.simulation.judge import violations
    from tests.proof.simulation.story import story_of
    from tests.proof.simulation.world import World

    for seed in map(int, sys.argv[2].split(",")):
        found = violations(World(story_of(seed, size=0.3)).run())
        if found:
            print(f"seed {seed}: {found[0]}")
            sys.exit(1)
