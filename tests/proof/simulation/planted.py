"""Runs stories with one planted bug: `python -m tests.proof.simulation.planted NUMBER SECONDS`.

Exit code 1: a story showed the bug's symptom, which is printed. 0: none did in so much processor time.
"""

import itertools
import re
import sys
import time
from collections.abc import Callable

from tests.proof.simulation.defects import DEFECTS, plant


def main() -> int:
    """Run stories of the defect's kinds in turn."""
    defect, seconds = DEFECTS[int(sys.argv[1])], float(sys.argv[2])
    plant(defect)
    show = _show()
    others: dict[str, str] = {}
    for seed in itertools.count():
        for kind in defect.kinds:
            if time.process_time() > seconds:
                print("\n".join(f"not the symptom: {each}" for each in list(others.values())[:5]))
                return 0
            for found in show(kind, seed):
                if re.search(defect.symptom, found):
                    print(f"{time.process_time():.1f} s, {kind} {seed}: {found[:300]}")
                    return 1
                others.setdefault(found[:25], f"{kind} {seed}: {found[:200]}")
    raise AssertionError


def _show() -> Callable[[str, int], list[str]]:
    # Imported behind the planted module.
    from tests.proof.simulation.directed import directed_story
    from tests.proof.simulation.interference import world_of
    from tests.proof.simulation.judge import violations

    def show(kind: str, seed: int) -> list[str]:
        outcome = world_of(directed_story(kind, seed)).run()
        try:
            return violations(outcome)
        except Exception as error:  # noqa: BLE001 - rows that contradict each other cannot be judged
            return [*outcome.findings, f"JUDGE raised {error!r}"]

    return show


if __name__ == "__main__":
    sys.exit(main())
