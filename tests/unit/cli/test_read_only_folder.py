"""The commands work in a read-only folder."""

import subprocess
import sys

import pytest

_READ_ONLY = "/proc"


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("executor --help", 0),
        ("worker actions --actions turnstile.stress.actions", 0),
        ("stress run --help", 0),
        ("executor submit some.action --api-url http://127.0.0.1:1", 3),
    ],
)
def test_a_command_needs_no_writable_folder(command: str, exit_code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "turnstile", *command.split()],
        cwd=_READ_ONLY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == exit_code, done.stderr
