"""Server processes, each with a keeper process beside it (`keeper.py`), seen from their owner.

A `ServerProcess` can be signalled, paused, awaited and stopped. Nothing of it runs after `stop`, nor after
the owner has ended in any way. `run_in_thread` calls the blocking functions of this package from an event
loop.
"""

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from turnstile.localservers.errors import ServerFailed

_KEEPER = Path(__file__).with_name("keeper.py")
_KEEPER_START_SECONDS = 10.0
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.02


class ServerProcess:
    """A running server; `pid` leads its process group."""

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
        runs_in: Path | None = None,
        environment: Mapping[str, str],
        user: str | None,
        last_signal: signal.Signals,
        grace_seconds: float,
    ) -> Self:
        """Start `command` in `runs_in`, or else in `folder`, which gets its log.

        If this process dies without stopping it, it gets `last_signal`, and SIGKILL `grace_seconds` later.
        """
        log = folder / f"{name}.log"
        keeper_arguments = [str(int(last_signal)), str(grace_seconds), user or "", "--", *command]
        with log.open("ab") as output:
            keeper = subprocess.Popen(
                # -I -S: standard library only; it starts in 20 ms.
                [sys.executable, "-I", "-S", str(_KEEPER), *keeper_arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=runs_in or folder,
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
        """Whether the server or a descendant of it still runs."""
        return self._keeper.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code: 128 plus the number of the signal that killed it; None: it runs."""
        return self._keeper.poll()

    def family(self) -> set[int]:
        """Return the pids of the server and all its descendants, also of those whose parents have ended."""
        return family_of({self._keeper.pid}, all_stat_fields()) - {self._keeper.pid}

    def send(self, which: signal.Signals) -> None:
        """Send a signal to the server process; no effect once it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, which)

    def pause(self) -> None:
        """Freeze the server and its descendants (SIGSTOP)."""
        self._send_to_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused server."""
        self._send_to_all(signal.SIGCONT)

    def stop(self, which: signal.Signals, timeout_seconds: float) -> None:
        """Send `which`, wait, and kill it after `timeout_seconds`; nothing of it runs afterwards."""
        self.send(which)
        self.resume()
        try:
            self._keeper.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._keeper.wait(_KILL_SECONDS)
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()

    def kill(self, timeout_seconds: float) -> None:
        """Kill the server and its descendants at one moment: none sees that another one has died."""
        self.pause()
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._keeper.wait(timeout_seconds)

    def _send_to_all(self, which: signal.Signals) -> None:
        """Send it to the server and its descendants: PostgreSQL backends have process groups of their own."""
        sent: set[int] = set()
        # Listed again once the parents are frozen, so no child is missed.
        while self.is_running and (fresh := family_of({self.pid}, all_stat_fields()) - sent):
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, which)
            sent |= fresh


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
    """Return the account for a server: an unprivileged one for root, else None (unchanged)."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return preferred if preferred in known else "nobody"


def server_folder(folder: Path, user: str | None) -> Path:
    """Create `folder`, owned by `user`; raise ServerFailed where that user cannot reach it."""
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
    """Write a file that the server's account can read, whatever the umask."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def wait_until_ready(is_ready: Callable[[], bool], process: ServerProcess, timeout_seconds: float) -> None:
    """Wait until `is_ready()`; raise `ServerFailed` if the server ends or the timeout passes first."""
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        if not process.is_running:
            raise ServerFailed(f"{process.name} ended while it started", process.log)
        if time.monotonic() > deadline:
            raise ServerFailed(f"{process.name} was not ready after {timeout_seconds:.0f} s", process.log)
        time.sleep(_POLL_SECONDS)


def family_of(pids: Iterable[int], stats: Mapping[int, list[str]]) -> set[int]:
    """Return these processes and their descendants; `stats` is what `all_stat_fields` returns."""
    found = fresh = set(pids)
    while fresh:
        fresh = {pid for pid, fields in stats.items() if int(fields[1]) in fresh} - found
        found = found | fresh
    return found


def all_stat_fields() -> dict[int, list[str]]:
    """Return `stat_fields` of every visible process of the machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(folder.name)] = stat_fields(int(folder.name))
    return found


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, which is field 3 of proc(5); raises OSError."""
    # The name before them, in parentheses, may contain anything.
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()


P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call blocking `work` in a thread; on cancellation, wait until it has returned, then raise.

    A thread cannot be interrupted: without the wait, a clean-up would run beside it.
    """
    name = getattr(work, "__qualname__", "work")
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **options), name=name)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            # Retrieved, so that asyncio does not log it.
            task.exception()
        raise
