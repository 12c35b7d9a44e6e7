"""The guardian process: finds and kills all of a run, asked, in time, or when the worker is dead.

In, a line each (a run is named by its mark, sixteen hex digits): `+<mark>` it is about to start,
`+<mark> <group>` it has started, `-<mark>` it has ended by itself, `!<mark>` end it now, `=<seconds>` all may
run until this instant of `clock()`, `=` without limit. Out: `.<mark>` it was killed, `~<mark>` its time is
over, it is about to be killed. When the input ends, everything noted is killed: so neither a worker that died
nor one that is stopped has anything running once its lease is over (P6).

To a run belong the processes that carry its mark (see `worker.runners.mark`), its session, and all their
descendants. They are stopped first, and looked for again until there are no more, so that none is
born unseen while its parent is killed. This runs on the standard library alone.
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
"""Between two looks for what ended runs left behind; a look takes milliseconds, for all of them together."""
_SWEEPS_MAX: Final = 40
_ROUNDS_MAX: Final = 50
_DYING_SECONDS: Final = 0.2
"""Longest wait for what was killed: only what hangs in the kernel takes longer."""
_ENVIRONMENT_MARK: Final = b"TURNSTILE_RUN="
_LIMIT_MARK: Final = b"Max realtime timeout"


def clock() -> float:
    """Return seconds of the clock of deadlines: it also counts while the machine sleeps."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


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


def family(runs: Mapping[int, int | None], since_ticks: int) -> list[Process]:
    """Return what belongs to `runs` (mark, session where known) and started at `since_ticks` or later."""
    sessions = {session for session in runs.values() if session is not None}
    young = [process for process in _processes() if process.started_ticks >= since_ticks]
    members = {p.pid: p for p in young if p.session in sessions or not _marks(p.pid).isdisjoint(runs)}
    size = -1
    while size != len(members):
        size = len(members)
        members |= {process.pid: process for process in young if process.parent in members}
    return list(members.values())


def end(runs: Mapping[int, int | None], since_ticks: int) -> bool:
    """Kill what belongs to `runs`, and see it die; return whether there was anything."""
    stopped: set[Process] = set()
    for _ in range(_ROUNDS_MAX if runs else 0):
        known = {process[:2] for process in stopped}
        fresh = [process for process in family(runs, since_ticks) if process[:2] not in known]
        if not fresh:
            break
        for process in fresh:
            _send(process, signal.SIGSTOP)
        stopped.update(fresh)
    for process in stopped:
        _send(process, signal.SIGKILL)
    patience_ends = time.monotonic() + _DYING_SECONDS
    while any(_lives(process) for process in stopped) and time.monotonic() < patience_ends:
        time.sleep(_DYING_SECONDS / 100)
    return bool(stopped)


class _Notes:
    """What the worker has said so far, and what is still to be done about it."""

    def __init__(self) -> None:
        # What is older than the worker belongs to no run of it: on a large machine that saves most of a look.
        worker = process_of(os.getppid())
        self._since_ticks = worker.started_ticks if worker else 0
        self._runs: dict[int, int | None] = {}
        self._asked: set[int] = set()
        # Ended by order or in time, while the worker has not yet said that it knows.
        self._handled: set[int] = set()
        self._sweeps: dict[int, int] = {}
        self._next_sweep_seconds = 0.0
        self._deadline_seconds: float | None = None

    def take(self, line: str) -> None:
        kind, (mark, *group) = line[0], line[1:].split() or [""]
        match kind:
            case "=":
                self._deadline_seconds = float(mark) if mark else None
            case "+":
                self._runs[int(mark, 16)] = int(group[0]) if group else None
                self._handled.discard(int(mark, 16))
            case "-":
                self._runs.pop(int(mark, 16), None)
                self._handled.discard(int(mark, 16))
                self._sweeps[int(mark, 16)] = _SWEEPS_MAX
            case "!":
                self._asked.add(int(mark, 16))
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
        """End everything that was noted and all that was left."""
        end(self._runs | dict.fromkeys(self._sweeps), self._since_ticks)
        if None in self._runs.values():
            # The worker died while it started one: that carries its mark from the moment it executes.
            time.sleep(_SWEEP_SECONDS)
            end(self._runs, self._since_ticks)

    def _sweep(self) -> None:
        # Its leader was reaped: the number of its session may be another's by now, only the mark counts.
        left = end(dict.fromkeys(self._sweeps), self._since_ticks)
        self._sweeps = {mark: n - 1 for mark, n in self._sweeps.items() if n > 1} if left else {}
        self._next_sweep_seconds = time.monotonic() + _SWEEP_SECONDS


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and (process := process_of(int(name))) is not None:
            yield process


def _marks(pid: int) -> set[int]:
    environment = _read(f"/proc/{pid}/environ").split(b"\0")
    texts = [e.removeprefix(_ENVIRONMENT_MARK) for e in environment if e.startswith(_ENVIRONMENT_MARK)]
    limits = _read(f"/proc/{pid}/limits").partition(_LIMIT_MARK)[2].split(maxsplit=1)
    return {int(t, 16) for t in texts if _is_hex(t)} | {int(t) for t in limits[:1] if t.isdigit()}


def _is_hex(text: bytes) -> bool:
    return len(text) == 16 and all(byte in b"0123456789abcdef" for byte in text)


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


def _say(kind: str, marks: Iterable[int]) -> None:
    for mark in marks:
        try:
            os.write(_STDOUT, f"{kind}{mark:016x}\n".encode())
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
