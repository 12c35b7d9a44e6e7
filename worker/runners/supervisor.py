"""Starts the processes of runs, and kills each run whole, even if the worker dies or is stopped (P6).

In: an argv. Out: a `ProcessGroup` that can be terminated, killed and awaited. A run is the process that was
started, which leads a session of its own, and all that came from it, wherever it moved: every process
inherits the run's `ProcessTag`. The killing is done by a supervisor process beside the worker
(`supervisor_main`), which outlives it: when the worker dies, its pipe closes, and that ends everything; a
deadline has the same effect on a worker that is only stopped. A supervisor that dies is replaced.
"""

import asyncio
import logging
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from turnstile.common.telemetry.logs import Episodes
from turnstile.worker.runners.base import Stop

logger = logging.getLogger(__name__)
_REPLACED: Final = Episodes(logger, "supervisor_replaced")

TAG_VARIABLE: Final = "TURNSTILE_RUN"
_TAG_BITS: Final = 62
_SETTINGS_PREFIX: Final = "TURNSTILE_"
_MAIN: Final = Path(__file__).with_name("supervisor_main.py")
_CHUNK_BYTES: Final = 64 * 1024
_CLOSE_SECONDS: Final = 5.0
_RESTART_SECONDS: Final = 1.0
"""Shortest time between two starts of a supervisor."""
_KILL_SECONDS: Final = 0.5
"""Longest wait for the supervisor; then the group alone is killed, and the supervisor kills the rest."""
_OVERDUE: Final = Stop(kind="lease_lost", reason="the worker was stopped or cut off until its lease was over")


def inherited_environment(passed: Collection[str] = ()) -> dict[str, str]:
    """Return the worker's environment without `TURNSTILE_*`, except the variables named in `passed`.

    Those hold passwords and tokens. They must be missing at the exec: what a process deletes later can still
    be read in its /proc/<pid>/environ.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_SETTINGS_PREFIX) or name in passed
    }


@dataclass(frozen=True, slots=True)
class ProcessTag:
    """Identifies every process of a run: its processes inherit it, and others can read it in /proc.

    It is set in two places. The variable `TURNSTILE_RUN` is there from the first instruction on, but a
    program may clear its environment, and that of a program that hides its memory (ssh-agent) cannot be read.
    The soft limit of real-time CPU time is set a moment after the start; programs do not clear it, everyone
    may read it, and as a limit of a hundred thousand years it has no other effect.
    """

    value: int

    @classmethod
    def new(cls) -> Self:
        """Return a unique tag; its high bit is set: as a limit it is high, as text it has 16 digits."""
        return cls(1 << _TAG_BITS | secrets.randbits(_TAG_BITS))

    @property
    def text(self) -> str:
        """The tag in the environment."""
        return f"{self.value:016x}"

    def attach_to(self, pid: int) -> None:
        """Set the limit of a child process that has just started: what it starts from now on inherits it."""
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        try:
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (self.value, hard))
        except (OSError, ValueError):
            # It has ended, runs as another user (set-user-id), or has a lower hard limit.
            pass


class Supervisor:
    """The supervisor process of this worker; create it within a running loop, and close it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._groups: dict[ProcessTag, int | None] = {}
        self._deadline_seconds: float | None = None
        self._on_killed: dict[str, Callable[[], None]] = {}
        self._overdue: set[str] = set()
        self._received = b""
        # Another thread may set a deadline while the supervisor, and its pipe, is replaced.
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._started_at = 0.0
        self._start()

    def announce(self, tag: ProcessTag) -> None:
        """Register a run before it starts: from now on it is killed even if the worker dies at once."""
        self._groups[tag] = None
        self._send(f"+{tag.text}")

    def started(self, tag: ProcessTag, group: int) -> None:
        """Register the process group, and session, of a run that has started."""
        self._groups[tag] = group
        self._send(f"+{tag.text} {group}")

    def ended(self, tag: ProcessTag) -> None:
        """Unregister a run that has ended; processes that it left behind are found and killed soon."""
        self._groups.pop(tag, None)
        self._overdue.discard(tag.text)
        self._on_killed.pop(tag.text, None)
        self._send(f"-{tag.text}")

    def kill(self, tag: ProcessTag, on_killed: Callable[[], None]) -> None:
        """Kill all of a run, then call `on_killed`: at once, if there is no supervisor process."""
        self._on_killed[tag.text] = on_killed
        if not self._send(f"!{tag.text}"):
            self._killed(tag.text)

    def set_deadline(self, deadline_seconds: float | None) -> None:
        """Kill all runs at this instant of CLOCK_BOOTTIME; None: never. Replaces the previous deadline.

        The supervisor process does it, so it happens even though the worker is stopped. May be called from
        any thread.
        """
        self._deadline_seconds = deadline_seconds
        self._send(_deadline(deadline_seconds))

    def killed_at_deadline(self, tag: ProcessTag) -> bool:
        """Return whether the supervisor killed this run at the deadline; call it before `ended`."""
        self._receive()
        return tag.text in self._overdue

    def close(self) -> None:
        """End the supervisor, and with it all registered runs."""
        self._closed = True
        process = self._disconnect()
        if process is None:
            return
        try:
            process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._closed:
            return
        self._started_at = self._loop.time()
        process = subprocess.Popen(
            # -I -S: only the standard library, so that it is small and starts in 20 ms.
            [sys.executable, "-I", "-S", str(_MAIN)],
            env=inherited_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with self._sending:
            runs = [f"+{tag.text} {group or ''}" for tag, group in self._groups.items()]
            # Blocks if it is long; from then on nothing waits for the supervisor.
            process.stdin.write("\n".join([*runs, _deadline(self._deadline_seconds), ""]).encode())
            process.stdin.flush()
            os.set_blocking(process.stdin.fileno(), False)
            self._process = process
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._receive)

    def _disconnect(self) -> subprocess.Popen[bytes] | None:
        with self._sending:
            process, self._process = self._process, None
            if process is not None:
                assert process.stdin is not None
                assert process.stdout is not None
                self._loop.remove_reader(process.stdout.fileno())
                process.stdin.close()
                process.stdout.close()
        return process

    def _send(self, line: str) -> bool:
        with self._sending:
            if self._process is None or self._process.stdin is None:
                return False
            try:
                # A line is far shorter than PIPE_BUF, so it is written completely or not at all.
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())
            except BlockingIOError:
                # It has read nothing for a long time, and this line is lost: replace it.
                self._process.kill()
                return False
            except BrokenPipeError:
                return False
        return True

    def _receive(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        try:
            data = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._replace()
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            kind, tag_text = line[:1], line[1:].decode()
            if kind == b"~":
                self._overdue.add(tag_text)
            else:
                self._killed(tag_text)

    def _killed(self, tag_text: str) -> None:
        if (on_killed := self._on_killed.pop(tag_text, None)) is not None:
            on_killed()

    def _replace(self) -> None:
        process = self._disconnect()
        if process is not None:
            # Its end of the pipe is closed, so it has ended, or has nothing left to do.
            process.kill()
            process.wait()
        self._received = b""
        _REPLACED.failed("supervisor")
        for tag_text in list(self._on_killed):
            self._killed(tag_text)
        self._loop.call_at(max(self._loop.time(), self._started_at + _RESTART_SECONDS), self._start)


def _deadline(deadline_seconds: float | None) -> str:
    return "=" if deadline_seconds is None else f"={deadline_seconds:.6f}"


class ProcessGroup:
    """A running process group.

    `terminate` reaches the leader's group. After a stop, `ended` is set once all of the run was killed; if
    the leader ends by itself, its group is killed before it is reaped, while its pid cannot be reused, and
    the processes that left the group soon after.
    """

    def __init__(self, process: subprocess.Popen[bytes], tag: ProcessTag, supervisor: Supervisor) -> None:
        self._process = process
        self._tag = tag
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """The leader's exit code; negative: the signal that killed it."""
        self._terminated = False
        self._leader_is_dead = False
        self._rest_is_killed = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self.overdue: Stop | None = None
        """Why the supervisor killed it at the deadline, if it did."""
        # A pidfd becomes readable when the process ends: no SIGCHLD handler, no thread, on every loop.
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._leader_ended)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        supervisor: Supervisor,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Start `argv`; raises OSError or ValueError if that fails. The descriptors stay the caller's."""
        tag = ProcessTag.new()
        supervisor.announce(tag)
        try:
            process = subprocess.Popen(
                argv,
                env={**environment, TAG_VARIABLE: tag.text},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            supervisor.ended(tag)
            raise
        tag.attach_to(process.pid)
        supervisor.started(tag, process.pid)
        try:
            return cls(process, tag, supervisor)
        except BaseException:
            # Without a descriptor for it, its end would not be seen.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            supervisor.ended(tag)
            raise

    @property
    def pid(self) -> int:
        """The leader's process id, which is the group's too."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the leader runs; asks the system, so an end that the event loop has not seen yet counts."""
        # It is left to be reaped.
        return not self.ended.done() and (
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        )

    def terminate(self, stop: Stop) -> None:
        """Send SIGTERM to the group."""
        self._terminated = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all of it: the group is stopped at once, the rest is found, and all are killed together."""
        if self._kill_timer is None and not self.ended.done():
            self._kill_timer = self._loop.call_later(_KILL_SECONDS, self._all_killed)
            self._signal(signal.SIGSTOP)
            self._supervisor.kill(self._tag, self._all_killed)

    def _leader_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._leader_is_dead = True
        if self._terminated:
            # The leader obeyed; processes that left its group did not even get the signal.
            self.kill()
        if self._kill_timer is None or self._rest_is_killed:
            self._reap()

    def _all_killed(self) -> None:
        self._rest_is_killed = True
        self._signal(signal.SIGKILL)
        if self._leader_is_dead:
            self._reap()

    def _reap(self) -> None:
        if self.ended.done():
            return
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        if code == -signal.SIGKILL and self._supervisor.killed_at_deadline(self._tag):
            self.overdue = _OVERDUE
        self._supervisor.ended(self._tag)
        self.ended.set_result(code)

    def _signal(self, which: signal.Signals) -> None:
        # Until the leader is reaped its pid is not reused.
        if self.ended.done():
            return
        try:
            os.killpg(self.pid, which)
        except (ProcessLookupError, PermissionError):
            # No process is left, or only set-user-id programs.
            pass


def exit_reason(code: int) -> str:
    """Return in words how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        # The kernel does not say which of the two it was.
        return "was killed by SIGKILL: from outside, or by the kernel because memory ran out"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
