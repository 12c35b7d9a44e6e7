"""The supervisor process: kills all of a run, on request, at a deadline, or when the worker dies (P6).

In, a line each (a run is named by its tag, sixteen hex digits): `+<tag>` it is about to start,
`+<tag> <group>` it has started, `-<tag>` it has ended by itself, `!<tag>` kill it now, `=<seconds>` kill all
at this instant of `clock()`, `=` no deadline. Out: `.<tag>` it was killed, `~<tag>` it is about to be killed
at the deadline. When the input ends, all registered runs are killed.

To a run belong the processes that carry its tag (see `worker.runners.supervisor`), those of its session, and
all their descendants. They are stopped first, and the search is repeated until it finds no more, so that no
process is forked unseen while its parent is killed. Only the standard library is used.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

_STDIN: Final = 0
_STDOUT: Final = 1
_CHUNK_BYTES: Final = 64 * 1024
_POLL_SECONDS: Final = 1.0
"""Longest sleep while there is a deadline: the clock of `select` does not count while the machine sleeps."""
_SWEEP_SECONDS: Final = 0.25
"""Between two searches for what ended runs left behind; one search covers all of them."""
_SWEEPS_MAX: Final = 40
_ROUNDS_MAX: Final = 50
_DYING_SECONDS: Final = 0.2  # only a process that hangs in the kernel takes longer
_ENVIRONMENT_TAG: Final = b"TURNSTILE_RUN="
_LIMIT_TAG: Final = b"Max realtime timeout"


def clock() -> float:
    """Return seconds of the clock of deadlines, which also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Process(NamedTuple):
    """A living process; its pid may be reused, but not together with its start time."""

    pid: int
    started_ticks: int
    parent: int
    session: int


def process_of(pid: int) -> Process | None:
    """Return the process, or None if it has ended."""
    # The name is in parentheses and may contain anything, parentheses too.
    state, *fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split() or [b"X"]
    if state in (b"Z", b"X"):
        return None
    return Process(pid=pid, started_ticks=int(fields[18]), parent=int(fields[0]), session=int(fields[2]))


class _Search:
    """Finds the processes of `runs` (tag, session where known) that are not older than `since_ticks`."""

    def __init__(self, runs: Mapping[str, int | None], since_ticks: int) -> None:
        self._tags = runs.keys()
        self._sessions = {session for session in runs.values() if session is not None}
        self._since_ticks = since_ticks
        self._unrelated: set[Process] = set()
        self.stopped: dict[int, Process] = {}

    def stop_all(self) -> None:
        """Stop each process when it is found, and search again until nothing new is found."""
        for _ in range(_ROUNDS_MAX if self._tags else 0):
            # The newest first: a chain of processes that forks all the time must be caught at its young end.
            if not sum(map(self._is_new, _newest_first())):
                return

    def kill_all(self) -> None:
        """Kill what was stopped, and wait for its death."""
        for process in self.stopped.values():
            _send(process, signal.SIGKILL)
        deadline = time.monotonic() + _DYING_SECONDS
        while any(_lives(process) for process in self.stopped.values()) and time.monotonic() < deadline:
            time.sleep(_DYING_SECONDS / 100)

    def _is_new(self, process: Process) -> bool:
        if process.started_ticks < self._since_ticks or self.stopped.get(process.pid) == process:
            return False
        if not self._belongs(process):
            self._unrelated.add(process)
            return False
        _send(process, signal.SIGSTOP)
        self.stopped[process.pid] = process
        return True

    def _belongs(self, process: Process) -> bool:
        if process.session in self._sessions or process.parent in self.stopped:
            return True
        return process not in self._unrelated and not self._tags.isdisjoint(_tags(process.pid))


def _kill(runs: Mapping[str, int | None], since_ticks: int) -> bool:
    """Kill the processes of `runs`; return whether there were any."""
    search = _Search(runs, since_ticks)
    search.stop_all()
    search.kill_all()
    return bool(search.stopped)


class _Runs:
    """The runs that the worker has registered, and what is still to be done about them."""

    def __init__(self) -> None:
        # A process older than the worker belongs to no run: on a large machine that saves most of a search.
        worker = process_of(os.getppid())
        self._since_ticks = worker.started_ticks if worker else 0
        self._runs: dict[str, int | None] = {}
        self._requested: set[str] = set()
        # Killed already; the worker has not unregistered them yet.
        self._handled: set[str] = set()
        self._sweeps: dict[str, int] = {}
        self._next_sweep_seconds = 0.0
        self._deadline_seconds: float | None = None

    def read(self, line: str) -> None:
        kind, (tag, *group) = line[0], line[1:].split() or [""]
        match kind:
            case "=":
                self._deadline_seconds = float(tag) if tag else None
            case "+":
                self._runs[tag] = int(group[0]) if group else None
                self._handled.discard(tag)
            case "-":
                self._runs.pop(tag, None)
                self._handled.discard(tag)
                self._sweeps[tag] = _SWEEPS_MAX
            case "!":
                self._requested.add(tag)
            case _:
                raise AssertionError(line)

    def timeout_seconds(self) -> float | None:
        waits = []
        if self._deadline_seconds is not None and self._runs.keys() - self._handled:
            waits.append(min(self._deadline_seconds - clock(), _POLL_SECONDS))
        if self._sweeps:
            waits.append(self._next_sweep_seconds - time.monotonic())
        return max(0.0, min(waits)) if waits else None

    def act(self) -> None:
        """Kill what was requested and what is past the deadline; sweep for left processes when due."""
        over = self._deadline_seconds is not None and clock() >= self._deadline_seconds
        overdue = self._runs.keys() - self._handled if over else set()
        # Sent before the kill, so that the worker knows the reason when it sees the end.
        _send_lines("~", overdue)
        self._handled |= overdue | self._requested
        if now := overdue | self._requested:
            _kill({tag: self._runs.get(tag) for tag in now}, self._since_ticks)
            _send_lines(".", self._requested)
            self._requested.clear()
        if self._sweeps and time.monotonic() >= self._next_sweep_seconds:
            self._sweep()

    def kill_all(self) -> None:
        _kill(self._runs | dict.fromkeys(self._sweeps), self._since_ticks)
        if None in self._runs.values():
            # The worker died while it started a run, which carries its tag from its exec on.
            time.sleep(_SWEEP_SECONDS)
            _kill(self._runs, self._since_ticks)

    def _sweep(self) -> None:
        # The leader was reaped and its session's number may be reused: only the tag counts.
        began = time.monotonic()
        left = _kill(dict.fromkeys(self._sweeps), self._since_ticks)
        self._sweeps = {tag: n - 1 for tag, n in self._sweeps.items() if n > 1} if left else {}
        # On a machine with very many processes this takes at most a twentieth of one core.
        self._next_sweep_seconds = time.monotonic() + max(_SWEEP_SECONDS, 20 * (time.monotonic() - began))


def _newest_first() -> Iterator[Process]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    for pid in sorted(pids, reverse=True):
        if (process := process_of(pid)) is not None:
            yield process


def _tags(pid: int) -> set[str]:
    environment = _read(f"/proc/{pid}/environ").split(b"\0")
    texts = {e.removeprefix(_ENVIRONMENT_TAG) for e in environment if e.startswith(_ENVIRONMENT_TAG)}
    limits = _read(f"/proc/{pid}/limits").partition(_LIMIT_TAG)[2].split(maxsplit=1)
    return {t.decode(errors="replace") for t in texts} | {f"{int(t):016x}" for t in limits[:1] if t.isdigit()}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        # It has ended, or belongs to another user.
        return b""


def _lives(process: Process) -> bool:
    same = process_of(process.pid)
    return same is not None and same.started_ticks == process.started_ticks


def _send(process: Process, which: signal.Signals) -> None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The check follows the open, so the signal cannot reach a process that reuses the pid.
        if _lives(process):
            signal.pidfd_send_signal(pidfd, which)
    except (ProcessLookupError, PermissionError):
        # It has ended, or is a set-user-id program, which only its own user may signal.
        pass
    finally:
        os.close(pidfd)


def _send_lines(kind: str, tags: Iterable[str]) -> None:
    for tag in tags:
        try:
            os.write(_STDOUT, f"{kind}{tag}\n".encode())
        except OSError:
            # The worker died, or has not read the lines of a thousand runs.
            return


def main() -> None:
    """Serve until the input ends."""
    # It ignores signals for the worker's whole service: only the end of its input ends it.
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)
    os.set_blocking(_STDOUT, False)
    runs, rest = _Runs(), b""
    while True:
        readable, _, _ = select.select([_STDIN], [], [], runs.timeout_seconds())
        if readable:
            data = os.read(_STDIN, _CHUNK_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                runs.read(line.decode())
        runs.act()
    runs.kill_all()


if __name__ == "__main__":
    main()
