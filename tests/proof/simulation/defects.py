"""Planted bugs: each interleaving that a rule of the leader or the worker prevents, with that rule taken out.

A bug of `planted.txt` is a change of the text of one module, made before anything imports it, in a process of
its own: `python -m tests.proof.simulation.defects NUMBER SECONDS` runs stories of its kinds. Exit code 1: a
story showed its symptom, which is printed. 0: none did in so much processor time. `python -m
tests.proof.simulation --defects` plants all.
"""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.proof.planted import ROOT, PlantedBug, changed, planted_bugs

DEFECTS: Final = planted_bugs("simulation")


def shown_by(bug: PlantedBug) -> tuple[list[str], str]:
    """Return the kinds of directed stories that show it, and what they show, as a regular expression."""
    kinds, _, symptom = bug.found_by.partition(": ")
    return kinds.split(", "), symptom


def caught(number: int, *, seconds: float) -> str:
    """Plant a bug in a process of its own; return what its stories show, or "" after so much of its time.

    The time is that of the processor, so a busy machine changes nothing.
    """
    command = [sys.executable, "-m", "tests.proof.simulation.defects", str(number), str(seconds)]
    # The same hashes in every process: a seed is the same story everywhere.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return done.stdout.strip() if done.returncode == 1 else ""


def _plant(bug: PlantedBug) -> None:
    """Import the changed module in place of the real one. Call it before anything else is imported."""
    (path,) = {change.where for change in bug.changes}
    name = f"turnstile.{path.removesuffix('.py').replace('/', '.')}"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = changed((ROOT / path).read_text(encoding="utf-8"), bug.changes)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)


def _main() -> int:
    """Run stories of the bug's kinds in turn."""
    bug, seconds = DEFECTS[int(sys.argv[1])], float(sys.argv[2])
    kinds, symptom = shown_by(bug)
    _plant(bug)
    show = _show()
    others: dict[str, str] = {}
    for seed, kind in ((seed, kind) for seed in itertools.count() for kind in kinds):
        if time.process_time() > seconds:
            print("\n".join(f"not the symptom: {each}" for each in list(others.values())[:5]))
            return 0
        for found in show(kind, seed):
            if re.search(symptom, found):
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
    sys.exit(_main())
