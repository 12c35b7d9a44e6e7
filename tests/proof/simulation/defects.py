"""Planted bugs: each interleaving that a rule of the leader or the worker prevents, with that rule taken out.

A defect is a change of the text of one module, made before anything imports it, in a process of its own. It
names the kinds of directed stories that show it, and what they show. `python -m tests.proof.simulation
--defects` plants all.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.proof.planted import changed
from tests.proof.simulation.defect import Defect
from tests.proof.simulation.defects_of_leader import OF_LEADERSHIP, OF_ROWS, OF_TURNS
from tests.proof.simulation.defects_of_runs import OF_RUNS
from tests.proof.simulation.defects_of_workers import OF_WORKERS, OF_WORKERS_AT_THE_LEADER

DEFECTS: Final = (*OF_LEADERSHIP, *OF_TURNS, *OF_ROWS, *OF_WORKERS_AT_THE_LEADER, *OF_WORKERS, *OF_RUNS)
"""In the order of LEADER's chapters."""


def plant(defect: Defect) -> None:
    """Import the changed module in place of the real one. Call it before anything else is imported."""
    spec = importlib.util.find_spec(defect.module)
    assert spec is not None
    assert spec.origin is not None
    source = changed(Path(spec.origin).read_text(encoding="utf-8"), *defect.changes)
    module = importlib.util.module_from_spec(spec)
    sys.modules[defect.module] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    package, _, name = defect.module.rpartition(".")
    setattr(sys.modules[package], name, module)


def caught(number: int, *, seconds: float) -> str:
    """Plant a defect in a process of its own; return what its stories show, or "" after so much of its time.

    The time is that of the processor, so a busy machine changes nothing.
    """
    command = [sys.executable, "-m", "tests.proof.simulation.planted", str(number), str(seconds)]
    # The same hashes in every process: a seed is the same story everywhere.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return done.stdout.strip() if done.returncode == 1 else ""
