"""`python -m tests.proof.scenarios`: run every scenario at its whole size, repeatedly."""

import argparse
import os
import subprocess
import sys

from tests.proof.scenarios import ROOT, SCENARIOS, tests_named_in
from tests.proof.trials import run_trials

_PASS_SECONDS_MAX = 3600.0
_WALKS = "tests/proof/queue_manager/test_queue_manager.py"
"""Not a scenario of its own: any inputs in any order."""


def main() -> int:
    """Run all scenarios, `--times` times; stop after the first pass in which one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.scenarios", description="Run all scenarios.")
    parser.add_argument("--times", type=int, default=1, help="number of passes (default: 1)")
    parser.add_argument("--processes", default="2", help="parallel pytest processes (default: 2)")
    options = parser.parse_args()
    passes = range(1, options.times + 1)
    return run_trials(((f"pass {each}", lambda: _run(options.processes)) for each in passes), stop=True)


def _run(processes: str) -> list[str]:
    tests = dict.fromkeys([*tests_named_in(SCENARIOS.read_text(encoding="utf-8")), _WALKS])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-n", processes, "--dist", "loadfile", *tests]
    # A missing server is a failure, not a reason to skip.
    environment = {**os.environ, "CI": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=_PASS_SECONDS_MAX, check=False)
    return [f"pytest ended with {done.returncode}"] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
