"""One server process, with a keeper beside it, seen from the owner.

In: a command, a user, a log file. Out: a `ServerProcess` that can be signalled, paused, waited for and ended,
and of which nothing is left when `stop` returns, nor when the owner dies in any way. `keeper.py` is the
program beside it.
"""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from turnstile.localservers.errors import ServerFailed

_KEEPER = Path(__file__).with_name("keeper.py")
_KEEPER_START_SECONDS = 10.0
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.02


class ServerProcess:
    """A running server; `pid` is the leader of its process group."""

    __slots__ = ("_keeper", "log", "name", "pid")

    def __init__(self, name: str, pid: int, log: Path, keeper: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._keeper = keeper

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        user: str | None,
        last_signal: signal.Signals,
        grace_seconds: float,
    ) -> Self:
        """Start `command` in `folder`.

        `last_signal` is what it gets if this process dies without stopping it, `grace_seconds` later SIGKILL.
        """
        log = folder / f"{name}.log"
        keeper_arguments = [str(int(last_signal)), str(grace_seconds), user or "", "--", *command]
        with log.open("ab") as output:
            keeper = subprocess.Popen(
                # -I -S: nothing but the standard library, and up in 20 ms.
                [sys.executable, "-I", "-S", str(_KEEPER), *keeper_arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        assert keeper.stdout is not None
        with keeper.stdout as pid_line:
            answer = pid_line.readline()
        if not answer:
            keeper.communicate(timeout=_KEEPER_START_SECONDS)
            raise ServerFailed(f"{name} could not be started: {command[0]}", log)
        return cls(name, int(answer), log, keeper)

    @property
    def is_running(self) -> bool:
        """Whether the server or anything it started is still there."""
        return self._keeper.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended: 128 and the signal where one killed it; None: it runs."""
        return self._keeper.poll()

    def family(self) -> list[int]:
        """Return the server and all that it started, also those whose own parents have ended."""
        return [pid for generation in _generations(self._keeper.pid) for pid in generation]

    def send(self, which: signal.Signals) -> None:
        """Send a signal to the server itself; without effect once it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def pause(self) -> None:
        """Stop the server and its descendants where they stand (SIGSTOP)."""
        for pid in self._from_the_top():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server run on."""
        for pid in self._from_the_top():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self, which: signal.Signals, timeout_seconds: float) -> None:
        """Send `which`, wait, after `timeout_seconds` kill; when this returns nothing is left."""
        self.send(which)
        self.resume()
        try:
            self._keeper.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._keeper.wait(_KILL_SECONDS)
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()

    def _from_the_top(self) -> Iterator[int]:
        """Yield the server, then its descendants: backends are in process groups of their own."""
        if not self.is_running:
            return
        yield self.pid
        # The parent is stopped before its children are listed, so none is born unseen.
        for children in _generations(self.pid):
            yield from children


def run_once(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], user: str | None
) -> str:
    """Run a short-lived program of a server and return what it printed; raise `ServerFailed` if it fails."""
    account = pwd.getpwnam(user) if user else None
    done = subprocess.run(
        list(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def server_user(preferred: str) -> str | None:
    """Return the account that a server runs as: None (as we are), or one without powers when we are root."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return preferred if preferred in known else "nobody"


def server_folder(folder: Path, user: str | None) -> Path:
    """Create `folder` if need be, owned by `user`, and make sure that user can reach it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if user:
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid)
        for parent in folder.resolve().parents:
            if not parent.stat().st_mode & 0o001:
                raise ServerFailed(f"{folder} cannot be used: user {user} may not enter {parent}")
    return folder


def write_for_server(path: Path, text: str) -> None:
    """Write a file that the server's account can read, whatever our umask."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def wait_until_ready(is_ready: Callable[[], bool], process: ServerProcess, timeout_seconds: float) -> None:
    """Wait until `is_ready()`; raise `ServerFailed` if the server ends or the time is over first."""
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        if not process.is_running:
            raise ServerFailed(f"{process.name} ended while it started", process.log)
        if time.monotonic() > deadline:
            raise ServerFailed(f"{process.name} was not ready after {timeout_seconds:.0f} s", process.log)
        time.sleep(_POLL_SECONDS)


def _generations(ancestor: int) -> Iterator[set[int]]:
    """Yield the children of a process, then theirs, and so on, each as they are when they are asked for."""
    parents = {ancestor}
    while parents := {pid for pid, parent in _parents().items() if parent in parents}:
        yield parents


def _parents() -> dict[int, int]:
    """Return the parent of every process of the machine that we can see."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    return parents
