"""Finds the processes of a folder, and waits for conditions."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def processes_of(folder: Path) -> dict[int, str]:
    """Return the pids of all processes that run in `folder`, or name it in their command or environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            texts = (bytes((process / "cwd").readlink()), command, (process / "environ").read_bytes())
        except OSError:
            continue
        if any(os.fsencode(folder) in text for text in texts):
            found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 20.0) -> None:
    """Wait until `condition()` holds; fail after the deadline."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds} s"
        time.sleep(0.02)


def kill_owner(code: str, *, when: Callable[[], bool]) -> None:
    """Run a program that starts processes and prints a line; kill it when the condition holds."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        wait_until(when)
        owner.kill()
