"""Commands of `turnstile` in a fresh process: several share one, because the imports of each take long."""

import json
import os
import subprocess
import sys
from pathlib import Path

_RUN_ALL = """
import contextlib, io, json, sys
from turnstile.__main__ import main
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command.split()
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, errors.getvalue()]))
"""


def in_a_fresh_process(*arguments: str, folder: Path | None = None, **settings: str) -> str:
    """Run Python without the settings of this process, where a warning is an error; return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder, env=clean | settings, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(*commands: str, folder: Path | None = None, **settings: str) -> list[tuple[int, str]]:
    """Run these commands one after the other; return the exit code and the errors of each."""
    output = in_a_fresh_process("-c", _RUN_ALL, json.dumps(commands), folder=folder, **settings)
    return [(code, errors) for code, errors in map(json.loads, output.splitlines())]
