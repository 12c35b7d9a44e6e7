"""A process that leads a session of its own, together with all that stays in its process group.

In: an argv. Out: a `ProcessGroup` that can be asked, killed and awaited. When it has ended, all of
the group was killed: stragglers before the leader is reaped, while its number cannot be anybody else's.
How far this reaches: a grandchild that moves to a session of its own (`setsid`, a daemon) has left the group.
Next: `worker.runners.guardian` ends the groups of a worker that was killed.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

from worker.runners.guardian import Guardian
from worker.runners.stopping import Stop


class ProcessGroup:
    """A running process group."""

    __slots__ = ("_guardian", "_loop", "_pidfd", "_process", "ended")

    def __init__(self, process: subprocess.Popen[bytes], guardian: Guardian) -> None:
        self._process = process
        self._guardian = guardian
        self._guardian.watch(process.pid)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """The leader's exit code; negative: the signal that killed it."""
        # A pidfd becomes readable when the process ends: no SIGCHLD handler, no thread, on every loop.
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

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
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        return cls(process, guardian)

    @property
    def pid(self) -> int:
        """The leader's process id, which is the group's too."""
        return self._process.pid

    def ask(self, stop: Stop) -> None:
        """Send SIGTERM to the group."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._send(signal.SIGKILL)

    def _send(self, which: signal.Signals) -> None:
        # Once it has ended its number may be another's.
        if not self.ended.done():
            _signal_group(self.pid, which)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        _signal_group(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._guardian.forget(self.pid)
        if not self.ended.done():
            self.ended.set_result(code)


def exit_sentence(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
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
