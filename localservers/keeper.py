"""Runs one server for an owner process and ends it with the owner: standard library only.

    keeper.py SIGNAL GRACE_SECONDS USER -- command ...

The owner holds the write end of standard input and never writes: end of file means that the owner has ended,
kill -9 included. Then the server gets SIGNAL, and SIGKILL after GRACE_SECONDS. The first line on standard
output is the server's pid; the server's own output goes to standard error. The server runs as USER unless
that is empty. The keeper ends when the server and all its descendants have ended. `processes.py` is the
owner's side.
"""

import ctypes
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LEFTOVER_GRACE_SECONDS = 3.0


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class _Children:
    """The server and, on Linux, each of its descendants whose own parent has ended."""

    def __init__(self, server_pid: int) -> None:
        self.server_pid = server_pid
        self.server_status: int | None = None
        self.any_left = True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.any_left = False
                return
            if pid == 0:
                return
            if pid == self.server_pid:
                self.server_status = os.waitstatus_to_exitcode(status)

    def reap_until(self, deadline: float, wakeups: int, *, whole_family: bool) -> bool:
        """Reap until the server (or every descendant) has ended; False if the deadline came first."""
        while True:
            self.reap()
            if not self.any_left or (self.server_status is not None and not whole_family):
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            if select.select([wakeups], [], [], remaining)[0]:
                os.read(wakeups, 4096)

    def kill_leftovers(self) -> None:
        for pid in _children_of(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The second field is the command in parentheses and may itself hold spaces and parentheses.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def _start(command: list[str], last_signal: int, user: str) -> int:
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        process_group=0,
        # Runs after the change of user, which would clear it; safe because the keeper has one thread.
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, last_signal),  # noqa: PLW1509
        user=user or None,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    # The keeper reaps with waitpid(-1): the Popen object must not wait or warn.
    server.returncode = 0
    return server.pid


def _wakeups_from_children() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def main() -> int:
    """Start the server, wait until it or the owner ends, and return the server's exit status."""
    last_signal, grace_seconds, user = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    command = sys.argv[5:]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler that does nothing: unlike SIG_IGN, the server does not inherit it.
        signal.signal(ignored, lambda *_: None)
    wakeups = _wakeups_from_children()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    children = _Children(_start(command, last_signal, user))
    os.write(1, f"{children.server_pid}\n".encode())
    os.close(1)

    while children.server_status is None:
        readable = select.select([0, wakeups], [], [])[0]
        if wakeups in readable:
            os.read(wakeups, 4096)
            children.reap()
        elif os.read(0, 4096) == b"":
            break

    if children.server_status is None:
        os.kill(children.server_pid, last_signal)
        os.kill(children.server_pid, signal.SIGCONT)
        if not children.reap_until(time.monotonic() + grace_seconds, wakeups, whole_family=False):
            os.kill(children.server_pid, signal.SIGKILL)
    while not children.reap_until(time.monotonic() + _LEFTOVER_GRACE_SECONDS, wakeups, whole_family=True):
        children.kill_leftovers()
    status = children.server_status or 0
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
