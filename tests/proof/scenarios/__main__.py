"""`python -m tests.proof.scenarios`: run every scenario at its whole size, as many times in a row as asked.

Exit code 0: each passed every time. Else it stops after the first pass in which one did not.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.proof.scenarios.page import ROOT, SCENARIOS, tests_named_in

_PASS_SECONDS_MAX = 3600.0
_MODEL = "tests/proof/model/test_queues.py"
"""No scenario, and all of them: whatever is asked in whatever order."""


def main() -> int:
    """Run as often as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.scenarios", description="Run all scenarios.")
    parser.add_argument("--times", type=int, default=1, help="how often, one after the other (default: 1)")
    parser.add_argument("--processes", default="2", help="pytest processes side by side (default: 2)")
    options = parser.parse_args()
    tests = list(dict.fromkeys([*tests_named_in(SCENARIOS.read_text(encoding="utf-8")), _MODEL]))
    for turn in range(1, options.times + 1):
        began = time.monotonic()
        code = _run(tests, options.processes)
        said = "every scenario passed" if code == 0 else f"pytest ended with {code}"
        print(f"pass {turn} of {options.times}: {said}, {time.monotonic() - began:.0f} s", flush=True)
        if code != 0:
            return 1
    return 0


def _run(tests: list[str], processes: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-n", processes, "--dist", "loadfile", *tests]
    # A missing server is a failure, not a reason to skip.
    environment = {**os.environ, "CI": "true"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, timeout=_PASS_SECONDS_MAX, check=False
    ).returncode


sys.exit(main())
