"""A program whose processes leave its group in all known ways: `escaping.py FILE wait|end|fail|stubborn`.

Each writes its pid to FILE. It uses only the standard library.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

SLEEP = ["sleep", "1000"]
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def main(path: str, mode: str) -> None:
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while resource.getrlimit(resource.RLIMIT_RTTIME) == UNLIMITED:
        time.sleep(0.001)  # the tag in the limits is set a moment after the start
    note(path)
    children: list[Callable[[], None]] = [a_child, a_job, a_session]
    if mode == "stubborn":
        children.append(a_bare_child)
    for way in children:
        fork(path, way)
    for way in (a_daemon, a_cleared_daemon, an_unlimited_daemon):
        if os.fork() == 0:
            os.setsid()
            fork(path, way)
            os._exit(0)
        os.wait()
    while len(Path(path).read_text().split()) < len(children) + 4:
        time.sleep(0.01)
    print("5")
    if mode in ("end", "fail"):
        sys.exit(0 if mode == "end" else 3)
    time.sleep(1000)


def a_child() -> None:
    os.execvp("sleep", SLEEP)


def a_job() -> None:
    """A process group of its own, like a background job of an interactive shell."""
    os.setpgid(0, 0)
    os.execvp("sleep", SLEEP)


def a_session() -> None:
    os.setsid()
    os.execvp("sleep", SLEEP)


def a_bare_child() -> None:
    """Neither tag, and a session of its own: only its living parent shows where it came from."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_RTTIME, UNLIMITED)
    os.execvpe("sleep", SLEEP, {})


def a_daemon() -> None:
    os.closerange(0, 64)
    time.sleep(1000)


def a_cleared_daemon() -> None:
    os.execvpe("sleep", SLEEP, {})


def an_unlimited_daemon() -> None:
    resource.setrlimit(resource.RLIMIT_RTTIME, UNLIMITED)
    os.execvp("sleep", SLEEP)


def fork(path: str, way: Callable[[], None]) -> None:
    if os.fork() == 0:
        note(path)
        way()


def note(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
