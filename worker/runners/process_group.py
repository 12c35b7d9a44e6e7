"""A run's processes: the one that was started, which leads a session of its own, and all that came from it.

In: an argv. Out: a `ProcessGroup` that can be asked, killed and awaited. `ask` reaches the leader's group.
When it was stopped, `ended` comes true once all of the run was killed, wherever it moved; when the leader
ended by itself, its group is killed before it is reaped, while its number cannot be anybody else's, and what
left the group soon after. Next: `worker.runners.mark`; `worker.runners.guardian` finds and kills.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, Self

from turnstile.worker.runners.guardian import Guardian
from turnstile.worker.runners.mark import VARIABLE, RunMark
from turnstile.worker.runners.stopping import Stop

_GUARDIAN_SECONDS: Final = 0.5
"""Longest wait for the guardian; then the group alone is killed, and the rest is left to it."""
_OVERDUE: Final = Stop(kind="lease_lost", reason="the worker was stopped or cut off until its lease was over")


class ProcessGroup:
    """A running process group."""

    __slots__ = (
        "_guardian",
        "_leader_is_dead",
        "_loop",
        "_mark",
        "_overdue",
        "_patience",
        "_pidfd",
        "_process",
        "_rest_is_killed",
        "_was_asked",
        "ended",
    )

    def __init__(self, process: subprocess.Popen[bytes], mark: RunMark, guardian: Guardian) -> None:
        self._process = process
        self._mark = mark
        self._guardian = guardian
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """The leader's exit code; negative: the signal that killed it."""
        self._was_asked = False
        self._leader_is_dead = False
        self._rest_is_killed = False
        self._patience: asyncio.TimerHandle | None = None
        self._overdue: Stop | None = None
        # A pidfd becomes readable when the process ends: no SIGCHLD handler, no thread, on every loop.
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._leader_ended)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        guardian: Guardian,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Start `argv`; raises OSError or ValueError if that cannot be. The descriptors stay the caller's."""
        mark = RunMark.new()
        guardian.announce(mark)
        try:
            process = subprocess.Popen(
                argv,
                env={**environment, VARIABLE: mark.text},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            guardian.forget(mark)
            raise
        mark.put_on(process.pid)
        guardian.watch(mark, process.pid)
        return cls(process, mark, guardian)

    @property
    def pid(self) -> int:
        """The leader's process id, which is the group's too."""
        return self._process.pid

    @property
    def overdue(self) -> Stop | None:
        """Why the guardian killed it of its own accord, if it did."""
        return self._overdue

    def ask(self, stop: Stop) -> None:
        """Send SIGTERM to the group."""
        self._was_asked = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End all of it: the group stands still at once, the rest is found, and all are killed together."""
        if self._patience is None and not self.ended.done():
            self._patience = self._loop.call_later(_GUARDIAN_SECONDS, self._all_killed)
            self._send(signal.SIGSTOP)
            self._guardian.end(self._mark, self._all_killed)

    def _leader_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._leader_is_dead = True
        if self._was_asked:
            # It obeyed; what has left its group was not even asked.
            self.kill()
        if self._patience is None or self._rest_is_killed:
            self._reap()

    def _all_killed(self) -> None:
        self._rest_is_killed = True
        self._send(signal.SIGKILL)
        if self._leader_is_dead:
            self._reap()

    def _reap(self) -> None:
        if self.ended.done():
            return
        if self._patience is not None:
            self._patience.cancel()
        self._send(signal.SIGKILL)
        code = self._process.wait()
        if code == -signal.SIGKILL and self._guardian.ended_overdue(self._mark):
            self._overdue = _OVERDUE
        self._guardian.forget(self._mark)
        self.ended.set_result(code)

    def _send(self, which: signal.Signals) -> None:
        # Until it is reaped its number is nobody else's.
        if not self.ended.done():
            _signal_group(self.pid, which)


def exit_sentence(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        # The kernel tells nobody which of the two it was.
        return "was killed by SIGKILL, by somebody, or by the kernel because memory ran out"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _signal_group(group: int, which: signal.Signals) -> None:
    try:
        os.killpg(group, which)
    except (ProcessLookupError, PermissionError):
        # Nobody is left, or nobody whom we may signal (a set-user-id program).
        pass
