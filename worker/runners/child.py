"""One child process, seen from the worker.

In: the modules to load; calls, one at a time. Out: outcomes, and the log lines between. A child that was
asked to stop, or that died, is never used again. Next: `child_pool` keeps them, `child_main` runs in them.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, Self

from turnstile.common.domain.outcomes import Completed, Failed
from turnstile.worker.attempt_log import WORKER_LOG, LogTail
from turnstile.worker.judgement import failed
from turnstile.worker.runners.capture import PipeReader
from turnstile.worker.runners.child_protocol import (
    HEADER,
    Ended,
    FromChild,
    Invoke,
    LogLine,
    NotReady,
    Ready,
    Setup,
    StopAsked,
    ToChild,
    read_from_child,
    to_child,
)
from turnstile.worker.runners.environment import inherited_environment
from turnstile.worker.runners.guardian import Guardian
from turnstile.worker.runners.process_group import ProcessGroup, exit_sentence
from turnstile.worker.runners.report import RunLimits
from turnstile.worker.runners.stopping import Stop

_LAST_WORDS_SECONDS: Final = 1.0
_DYING_SECONDS: Final = 3.0
_FRAME_BYTES_SPARE: Final = 1024 * 1024
"""For all of a frame but its result."""


class ChildDied(Exception):
    """The process ended before it answered; the message says how."""


class Child:
    """A process with the actions loaded; `ask` and `kill` act on its whole process group."""

    def __init__(
        self,
        group: ProcessGroup,
        output: PipeReader,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        result_bytes_max: int,
    ) -> None:
        # A result may double where each of its characters is escaped once more.
        self._frame_bytes_max = 2 * result_bytes_max + _FRAME_BYTES_SPARE
        self._group = group
        self._output = output
        self._reader = reader
        self._writer = writer
        self._is_fresh = True

    @classmethod
    async def start(cls, targets: Sequence[str], *, limits: RunLimits, guardian: Guardian) -> Self:
        """Start a process; it is not ready before `ready` returns."""
        ours, theirs = socket.socketpair()
        output_read, output_write = os.pipe()
        try:
            group = ProcessGroup.start(
                # -P: its import path is ours (see _environment), not the current folder before it; -u: what
                # it printed is in the pipe even if it dies.
                [
                    sys.executable,
                    "-P",
                    "-u",
                    "-m",
                    "turnstile.worker.runners.child_main",
                    str(theirs.fileno()),
                    *targets,
                ],
                guardian=guardian,
                environment=_environment(limits.variables_passed),
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            os.close(output_read)
            raise
        finally:
            theirs.close()
            os.close(output_write)
        output = PipeReader(output_read, _discard)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            group.kill()
            output.close()
            ours.close()
            raise
        child = cls(group, output, reader, writer, limits.result_bytes_max)
        level = min(logging.INFO, WORKER_LOG.getEffectiveLevel())
        child._send(
            Setup(
                parent_pid=os.getpid(),
                pythonpath=os.environ.get("PYTHONPATH"),
                log_level=level,
                result_bytes_max=limits.result_bytes_max,
            )
        )
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._group.pid

    @property
    def is_usable(self) -> bool:
        """Whether it can take another call."""
        return self._is_fresh and not self._group.ended.done()

    async def ready(self, log: LogTail) -> Failed | Stop | None:
        """Wait until the actions are loaded; return why that failed, if it did."""
        self._output.sink = log.write
        try:
            message = await self._receive()
        except ChildDied as error:
            return self._group.overdue or failed(
                "ProcessDied", f"the process {error} while it loaded the actions"
            )
        finally:
            self._output.drain()
            self._output.sink = _discard
        match message:
            case Ready():
                return None
            case NotReady():
                self._is_fresh = False
                return failed("ActionsNotLoaded", f"in the child process: {message.message}")
            case LogLine() | Ended():
                raise AssertionError(message)

    async def invoke(
        self, invoke: Invoke, log: LogTail, pass_on: Callable[[int, str], None]
    ) -> Completed | Failed | Stop:
        """Run one call to its end; its output goes to `log`, its log records to `pass_on` too."""
        # What a thread of the run before printed since then belongs to nobody.
        self._output.drain()
        self._output.sink = log.write
        try:
            self._send(invoke)
            while True:
                match await self._receive():
                    case LogLine() as line:
                        pass_on(line.level, line.message)
                    case Ended() as end:
                        return end.outcome
                    case Ready() | NotReady() as late:
                        raise AssertionError(late)
        except ChildDied as error:
            return self._group.overdue or failed(
                "ProcessDied", f"the process {error} before the action returned"
            )
        finally:
            self._output.drain()
            self._output.sink = _discard

    def ask(self, stop: Stop) -> None:
        """Ask the running action to stop: say why, then SIGTERM to the group."""
        self._is_fresh = False
        self._send(StopAsked(reason=stop.reason[:1000]))
        self._group.ask(stop)

    def kill(self) -> None:
        """End it now."""
        self._is_fresh = False
        self._group.kill()

    async def close(self) -> None:
        """End it and everything of it."""
        self.kill()
        self._output.close()
        self._writer.close()
        await asyncio.wait({self._group.ended}, timeout=_DYING_SECONDS)

    def _send(self, message: ToChild) -> None:
        # Bounded by one call's parameters, since nothing is sent before the call before it has ended.
        self._writer.write(to_child(message))

    async def _receive(self) -> FromChild:
        """Return the next message; raises ChildDied.

        The end of the process counts, not the end of the stream: a process that it forked may hold the
        socket open. But what it still said is read first.
        """
        frame = asyncio.create_task(self._frame(), name=f"child {self.pid}: frame")
        try:
            either: set[asyncio.Future[Any]] = {frame, self._group.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not frame.done():
                await asyncio.wait({frame}, timeout=_LAST_WORDS_SECONDS)
            error = frame.exception() if frame.done() else None
            if frame.done() and error is None:
                return frame.result()
            if isinstance(error, ValueError):
                self.kill()
                raise ChildDied("wrote to the worker's socket, which is not the action's to write to")
        finally:
            frame.cancel()
        # It closed its end, or is closing everything because it ends: do not wait long to learn which.
        await asyncio.wait({self._group.ended}, timeout=_LAST_WORDS_SECONDS)
        self._is_fresh = False
        if not self._group.ended.done():
            self.kill()
            raise ChildDied("closed its connection to the worker")
        raise ChildDied(exit_sentence(self._group.ended.result()))

    async def _frame(self) -> FromChild:
        """Return the next message; raises ValueError for what is none, EOFError at the end."""
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if length > self._frame_bytes_max:
            raise ValueError(length)
        return read_from_child(await self._reader.readexactly(length))


def _discard(data: bytes) -> None:
    pass


def _environment(passed: Collection[str]) -> dict[str, str]:
    """Return what it inherits, with our import path of now, so that the child finds the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**inherited_environment(passed), "PYTHONPATH": path}
