"""The guardian process: finds and kills all of a run, asked, in time, or when the worker is dead (P6).

In, a line each (a run is named by its mark, sixteen hex digits): `+<mark>` it is about to start,
`+<mark> <group>` it has started, `-<mark>` it has ended by itself, `!<mark>` end it now, `=<seconds>` all may
run until this instant of `clock()`, `=` without limit. Out: `.<mark>` it was killed, `~<mark>` its time is
over, it is about to be killed. When the input ends, everything noted is killed.

To a run belong the processes that carry its mark (see `worker.runners.mark`), those of its session, and all
their descendants. They are stopped first, and looked for again until there are no more, so that none is born
unseen while its parent is killed. This runs on the standard library alone.
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
# Waiting is counted on a clock that stands still while the machine sleeps: look at the other one as often.
_LOOK_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 0.25
"""Between two looks for what ended runs left behind: one look for all of them."""
_SWEEPS_MAX: Final = 40
_ROUNDS_MAX: Final = 50
_DYING_SECONDS: Final = 0.2  # only what hangs in the kernel takes longer
_ENVIRONMENT_MARK: Final = b"TURNSTILE_RUN="
_LIMIT_MARK: Final = b"Max realtime timeout"


def clock() -> float:
    """Return seconds of the clock of deadlines: it also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Process(NamedTuple):
    """A living process; number and start together are never another's."""

    pid: int
    started_ticks: int
    parent: int
    session: int


def process_of(pid: int) -> Process | None:
    """Return the process, or None if it has ended."""
    # The name stands in parentheses and may contain anything, parentheses too.
    state, *fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split() or [b"X"]
    if state in (b"Z", b"X"):
        return None
    return Process(pid=pid, started_ticks=int(fields[18]), parent=int(fields[0]), session=int(fields[2]))


class Hunt:
    """The search for what belongs to `runs` (mark, session where known), no older than `since_ticks`."""

    def __init__(self, runs: Mapping[str, int | None], since_ticks: int) -> None:
        self._marks = runs.keys()
        self._sessions = {session for session in runs.values() if session is not None}
        self._since_ticks = since_ticks
        self._strangers: set[Process] = set()
        self.stopped: dict[int, Process] = {}

    def stop_all(self) -> None:
        """Stop each where it is seen, and look again until nothing new is there."""
        for _ in range(_ROUNDS_MAX if self._marks else 0):
            # The newest first: what forks all the time can only be caught at its youngest end.
            if not sum(map(self._is_caught, _newest_first())):
                return

    def kill_all(self) -> None:
        """Kill what was stopped, and see it die."""
        for process in self.stopped.values():
            _send(process, signal.SIGKILL)
        patience_ends = time.monotonic() + _DYING_SECONDS
        while any(_lives(process) for process in self.stopped.values()) and time.monotonic() < patience_ends:
            time.sleep(_DYING_SECONDS / 100)

    def _is_caught(self, process: Process) -> bool:
        if process.started_ticks < self._since_ticks or self.stopped.get(process.pid) == process:
            return False
        if not self._belongs(process):
            self._strangers.add(process)
            return False
        _send(process, signal.SIGSTOP)
        self.stopped[process.pid] = process
        return True

    def _belongs(self, process: Process) -> bool:
        if process.session in self._sessions or process.parent in self.stopped:
            return True
        return process not in self._strangers and not self._marks.isdisjoint(_marks(process.pid))


def end(runs: Mapping[str, int | None], since_ticks: int) -> bool:
    """Kill what belongs to `runs`; return whether there was anything."""
    hunt = Hunt(runs, since_ticks)
    hunt.stop_all()
    hunt.kill_all()
    return bool(hunt.stopped)


class _Notes:
    """What the worker has said so far, and what is still to be done about it."""

    def __init__(self) -> None:
        # What is older than the worker belongs to no run of it: on a large machine that saves most of a look.
        worker = process_of(os.getppid())
        self._since_ticks = worker.started_ticks if worker else 0
        self._runs: dict[str, int | None] = {}
        self._asked: set[str] = set()
        # Ended by order or in time, while the worker has not yet said that it knows.
        self._handled: set[str] = set()
        self._sweeps: dict[str, int] = {}
        self._next_sweep_seconds = 0.0
        self._deadline_seconds: float | None = None

    def take(self, line: str) -> None:
        kind, (mark, *group) = line[0], line[1:].split() or [""]
        match kind:
            case "=":
                self._deadline_seconds = float(mark) if mark else None
            case "+":
                self._runs[mark] = int(group[0]) if group else None
                self._handled.discard(mark)
            case "-":
                self._runs.pop(mark, None)
                self._handled.discard(mark)
                self._sweeps[mark] = _SWEEPS_MAX
            case "!":
                self._asked.add(mark)
            case _:
                raise AssertionError(line)

    def timeout_seconds(self) -> float | None:
        waits = []
        if self._deadline_seconds is not None and self._runs.keys() - self._handled:
            waits.append(min(self._deadline_seconds - clock(), _LOOK_SECONDS))
        if self._sweeps:
            waits.append(self._next_sweep_seconds - time.monotonic())
        return max(0.0, min(waits)) if waits else None

    def act(self) -> None:
        """End what was asked for and what is overdue; sweep for stragglers where that is due."""
        over = self._deadline_seconds is not None and clock() >= self._deadline_seconds
        overdue = self._runs.keys() - self._handled if over else set()
        # Said before it is done, so that whoever sees the end can know the reason.
        _say("~", overdue)
        self._handled |= overdue | self._asked
        if now := overdue | self._asked:
            end({mark: self._runs.get(mark) for mark in now}, self._since_ticks)
            _say(".", self._asked)
            self._asked.clear()
        if self._sweeps and time.monotonic() >= self._next_sweep_seconds:
            self._sweep()

    def end_all(self) -> None:
        end(self._runs | dict.fromkeys(self._sweeps), self._since_ticks)
        if None in self._runs.values():
            # The worker died while it started one: that carries its mark from the moment it executes.
            time.sleep(_SWEEP_SECONDS)
            end(self._runs, self._since_ticks)

    def _sweep(self) -> None:
        # Its leader was reaped: the number of its session may be another's by now, only the mark counts.
        began = time.monotonic()
        left = end(dict.fromkeys(self._sweeps), self._since_ticks)
        self._sweeps = {mark: n - 1 for mark, n in self._sweeps.items() if n > 1} if left else {}
        # On a machine with very many processes it takes a twentieth of one core at the most.
        self._next_sweep_seconds = time.monotonic() + max(_SWEEP_SECONDS, 20 * (time.monotonic() - began))


def _newest_first() -> Iterator[Process]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    for pid in sorted(pids, reverse=True):
        if (process := process_of(pid)) is not None:
            yield process


def _marks(pid: int) -> set[str]:
    environment = _read(f"/proc/{pid}/environ").split(b"\0")
    texts = {e.removeprefix(_ENVIRONMENT_MARK) for e in environment if e.startswith(_ENVIRONMENT_MARK)}
    limits = _read(f"/proc/{pid}/limits").partition(_LIMIT_MARK)[2].split(maxsplit=1)
    return {t.decode(errors="replace") for t in texts} | {f"{int(t):016x}" for t in limits[:1] if t.isdigit()}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        # It ended meanwhile, or is none of our business.
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
        # The descriptor first, then the look: what is signalled is what was looked at, never its successor.
        if _lives(process):
            signal.pidfd_send_signal(pidfd, which)
    except (ProcessLookupError, PermissionError):
        # It ended, or is a set-user-id program, which only its own user may signal.
        pass
    finally:
        os.close(pidfd)


def _say(kind: str, marks: Iterable[str]) -> None:
    for mark in marks:
        try:
            os.write(_STDOUT, f"{kind}{mark}\n".encode())
        except OSError:
            # The worker died, or has not listened for a thousand runs: it cannot be helped by words.
            return


def main() -> None:
    """Serve until the input ends."""
    # It outlives a signal meant for the worker's whole service: the closing of the pipe is its only order.
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)
    os.set_blocking(_STDOUT, False)
    notes, rest = _Notes(), b""
    while True:
        readable, _, _ = select.select([_STDIN], [], [], notes.timeout_seconds())
        if readable:
            data = os.read(_STDIN, _CHUNK_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                notes.take(line.decode())
        notes.act()
    notes.end_all()


if __name__ == "__main__":
    main()
