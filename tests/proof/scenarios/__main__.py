"""`python -m tests.proof.scenarios`: run every scenario at its whole size, repeatedly.

Exit code 0: each passed every time. It stops after the first pass in which one failed.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.proof.scenarios import ROOT, SCENARIOS, tests_named_in

_PASS_SECONDS_MAX = 3600.0
_WALKS = "tests/proof/queue_manager/test_queue_manager.py"
"""Not a scenario of its own: any inputs in any order."""


def main() -> int:
    """Run all scenarios, `--times` times."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.scenarios", description="Run all scenarios.")
    parser.add_argument("--times", type=int, default=1, help="number of passes (default: 1)")
    parser.add_argument("--processes", default="2", help="parallel pytest processes (default: 2)")
    options = parser.parse_args()
    tests = list(dict.fromkeys([*tests_named_in(SCENARIOS.read_text(encoding="utf-8")), _WALKS]))
    for turn in range(1, options.times + 1):
        began = time.monotonic()
        code = _run(tests, options.processes)
        outcome = "every scenario passed" if code == 0 else f"pytest ended with {code}"
        print(f"pass {turn} of {options.times}: {outcome}, {time.monotonic() - began:.0f} s", flush=True)
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
