"""Runs plain functions in child processes.

In: a `Call`. Out: its report. At most `size` processes, each with one call at a time, are kept for the next
calls, since an interpreter takes 100 ms and more to start. A child that was stopped or that died is replaced.
Where no process can start, calls are returned until `try_start` succeeds. `child_main` runs in the child.
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

from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.lifespan import hooks_for
from turnstile.worker.logs import WORKER_LOG, LogTail
from turnstile.worker.outcome import failed, is_of_sigterm
from turnstile.worker.progress import Progress
from turnstile.worker.runners.base import (
    Call,
    Interrupted,
    PipeReader,
    RunLimits,
    RunReport,
    Stop,
    run_until_stopped,
)
from turnstile.worker.runners.child_protocol import (
    HEADER,
    Ended,
    FromChild,
    Invoke,
    Loaded,
    LogLine,
    Reported,
    Setup,
    StopRequested,
    ToChild,
    read_from_child,
    to_child,
)
from turnstile.worker.runners.supervisor import ProcessGroup, Supervisor, exit_reason, inherited_environment

_START_SECONDS: Final = 60.0
"""Longest start of a child: an interpreter and the imports of the user's modules."""
_LAST_FRAME_SECONDS: Final = 1.0
_DYING_SECONDS: Final = 3.0
_LEAVE_SECONDS: Final = 5.0
"""For the hooks of an idle process that ends."""
_FRAME_BYTES_SPARE: Final = 1024 * 1024
"""For all of a frame but its result."""


class ChildDied(Exception):
    """The process ended before it answered; the message says how."""

    by_sigterm = False


class Child:
    """A process with the actions loaded; `terminate` and `kill` act on its whole process group."""

    def __init__(
        self,
        group: ProcessGroup,
        output: PipeReader,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        result_bytes_max: int,
    ) -> None:
        # A result may double in size when its characters are escaped again.
        self._frame_bytes_max = 2 * result_bytes_max + _FRAME_BYTES_SPARE
        self._group = group
        self._output = output
        self._reader = reader
        self._writer = writer
        self._is_fresh = True
        self._runs = 0

    @classmethod
    async def start(cls, targets: Sequence[str], *, limits: RunLimits, supervisor: Supervisor) -> Self:
        """Start a process; it is ready once `ready` returns."""
        ours, theirs = socket.socketpair()
        output_read, output_write = os.pipe()
        # -P: its import path is the worker's (see _environment), without the current folder before it; -u:
        # what it printed is in the pipe even if it dies.
        command = [sys.executable, "-P", "-u", "-m", "turnstile.worker.runners.child_main"]
        try:
            group = ProcessGroup.start(
                [*command, str(theirs.fileno()), *targets],
                supervisor=supervisor,
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
        child._send(
            Setup(
                parent_pid=os.getpid(),
                pythonpath=os.environ.get("PYTHONPATH"),
                log_level=min(logging.INFO, WORKER_LOG.getEffectiveLevel()),
                result_bytes_max=limits.result_bytes_max,
            )
        )
        return child

    @property
    def is_usable(self) -> bool:
        """Whether it can take another call."""
        return self._is_fresh and self._group.is_alive

    def is_worn(self, limits: RunLimits) -> bool:
        """Whether it has run enough, or has grown too large, to take another call."""
        if limits.child_runs_max is not None and self._runs >= limits.child_runs_max:
            return True
        return (
            limits.child_memory_bytes_max is not None
            and _memory_bytes(self._group.pid) > limits.child_memory_bytes_max
        )

    async def ready(self, log: LogTail) -> Failed | Stop | None:
        """Wait until the actions are loaded; return why that failed, if it did."""
        self._output.sink = log.write
        try:
            message = await self._receive()
        except ChildDied as error:
            return self._died(f"the process {error} while it loaded the actions")
        finally:
            self._output.drain()
            self._output.sink = _discard
        assert isinstance(message, Loaded)
        self._is_fresh = message.failed is None
        return message.failed

    async def invoke(
        self,
        invoke: Invoke,
        log: LogTail,
        pass_on: Callable[[int, str], None],
        on_progress: Callable[[Progress], None],
    ) -> Completed | Failed | Stop:
        """Run one call to its end; its output goes to `log`, its log records to `pass_on` too."""
        # Output of a thread of the previous run, since that run ended, is discarded.
        self._output.drain()
        self._output.sink = log.write
        self._runs += 1
        try:
            self._send(invoke)
            while True:
                match await self._receive():
                    case LogLine() as line:
                        pass_on(line.level, line.message)
                    case Reported(progress=progress):
                        on_progress(progress)
                    case Ended(outcome=outcome, is_last=is_last):
                        self._is_fresh = self._is_fresh and not is_last
                        return outcome
                    case Loaded() as late:
                        raise AssertionError(late)
        except ChildDied as error:
            return self._died(f"the process {error} before the action returned", by_sigterm=error.by_sigterm)
        except BaseException:
            # The action goes on: its answer must not be taken for that of the next call.
            self.kill()
            raise
        finally:
            self._output.drain()
            self._output.sink = _discard

    def terminate(self, stop: Stop) -> None:
        """Request that the running action stops: send the reason, then SIGTERM to the group."""
        self._is_fresh = False
        self._send(StopRequested(reason=stop.reason[:1000]))
        self._group.terminate(stop)

    def kill(self) -> None:
        """End it now."""
        self._is_fresh = False
        self._group.kill()

    async def leave(self) -> None:
        """Let it call its hooks for the end of the process, for a while; it runs nothing."""
        self._is_fresh = False
        self._send(StopRequested(reason="the process is no longer needed"))
        await asyncio.wait({self._group.ended}, timeout=_LEAVE_SECONDS)

    async def close(self) -> None:
        """End it and everything of it."""
        self.kill()
        self._output.close()
        self._writer.close()
        await asyncio.wait({self._group.ended}, timeout=_DYING_SECONDS)

    def _died(self, message: str, *, by_sigterm: bool = False) -> Failed | Stop:
        return self._group.overdue or failed("ProcessDied", message, by_sigterm=by_sigterm)

    def _send(self, message: ToChild) -> None:
        # Bounded by one call's parameters, since nothing is sent before the previous call has ended.
        self._writer.write(to_child(message))

    async def _receive(self) -> FromChild:
        """Return the next message; raises ChildDied.

        The end of the process counts, not the end of the stream: a process that it forked may hold the
        socket open. But a last frame is read first.
        """
        frame = asyncio.create_task(self._frame(), name=f"child {self._group.pid}: frame")
        try:
            either: set[asyncio.Future[Any]] = {frame, self._group.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not frame.done():
                await asyncio.wait({frame}, timeout=_LAST_FRAME_SECONDS)
            error = frame.exception() if frame.done() else None
            if frame.done() and error is None:
                return frame.result()
            if isinstance(error, ValueError):
                self.kill()
                raise ChildDied("wrote to the worker's socket, which the action must not use")
        finally:
            frame.cancel()
        # It closed its end, or closes everything because it ends: wait a moment to learn which.
        await asyncio.wait({self._group.ended}, timeout=_LAST_FRAME_SECONDS)
        self._is_fresh = False
        if not self._group.ended.done():
            raise ChildDied("closed its connection to the worker")
        died = ChildDied(exit_reason(self._group.ended.result()))
        died.by_sigterm = is_of_sigterm(self._group.ended.result())
        raise died

    async def _frame(self) -> FromChild:
        """Return the next message; raises ValueError if it is none, EOFError at the end."""
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if length > self._frame_bytes_max:
            raise ValueError(length)
        return read_from_child(await self._reader.readexactly(length))


class ChildRunner:
    """Runs functions of the modules `targets`, or the call's entrypoint; close it at the end."""

    def __init__(
        self, targets: Sequence[str], *, size: int, limits: RunLimits, supervisor: Supervisor
    ) -> None:
        self._targets = targets
        self._limits = limits
        self._supervisor = supervisor
        self._slots = asyncio.Semaphore(size)
        # Last in, first out: the last used child's memory is warm, that of the others may be swapped out.
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self.failing = asyncio.Event()
        """Set while no process can start."""
        self.startable = asyncio.Event()
        """Set while `failing` is not."""
        self.startable.set()
        self.start_failure: Failed | None = None
        """Why the last start failed; None after one that succeeded."""

    async def run(self, call: Call) -> RunReport:
        """Run one attempt; the timeout starts when a process is ready for it.

        It is returned if no process can start: that says nothing about the attempt.
        """
        log = call.open_log(self._limits.log_bytes_max)
        async with self._slots:
            child = await self._ready_child(call, log)
            if isinstance(child, Failed):
                return _not_started(child)
            if isinstance(child, Stop):
                return RunReport.of(child, log)
            try:
                ended = await self._run_in(child, call, log)
            finally:
                if child.is_usable and not child.is_worn(self._limits):
                    self._idle.append(child)
                else:
                    await self._retire(child)
        return RunReport.of(ended, log)

    async def try_start(self) -> Failed | None:
        """Start a process for the next call, unless one is idle; return why that failed, if it did."""
        async with self._slots:
            child = await self._idle_child() or await self._started(LogTail(self._limits.log_bytes_max))
            if isinstance(child, Child):
                self._idle.append(child)
                self._note_start(None)
        return self.start_failure

    async def close(self) -> None:
        """End all processes, including those that still run something."""
        idle, self._idle = self._idle, []
        if hooks_for("child"):
            await asyncio.gather(*(child.leave() for child in idle if child.is_usable))
        for child in self._all:
            # All are killed first, so that they end at the same time.
            child.kill()
        for child in list(self._all):
            await self._retire(child)

    async def _run_in(self, child: Child, call: Call, log: LogTail) -> Completed | Failed | Stop:
        invoked = child.invoke(Invoke.of(call), log, call.log_in_worker, call.on_progress)
        work = asyncio.create_task(invoked, name=call.name)
        try:
            return await run_until_stopped(
                work, call.stop, call.run_seconds_max, self._limits.grace_seconds, child
            )
        finally:
            work.cancel()

    async def _ready_child(self, call: Call, log: LogTail) -> Child | Failed | Stop:
        if (child := await self._idle_child()) is not None:
            return child
        if self.start_failure is not None:
            return self.start_failure
        work = asyncio.create_task(self._started(log), name=f"{call.name}: start of a child")
        return await run_until_stopped(work, call.stop, None, 0.0)

    async def _idle_child(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.is_usable:
                return child
            await self._retire(child)
        return None

    async def _started(self, log: LogTail) -> Child | Failed | Stop:
        child = await self._loaded(log)
        if not isinstance(child, Stop):
            self._note_start(child if isinstance(child, Failed) else None)
        return child

    async def _loaded(self, log: LogTail) -> Child | Failed | Stop:
        try:
            child = await Child.start(self._targets, limits=self._limits, supervisor=self._supervisor)
        except OSError as error:
            return failed("ProcessNotStarted", str(error))
        self._all.add(child)
        is_ready = False
        try:
            async with asyncio.timeout(_START_SECONDS):
                problem = await child.ready(log)
            is_ready = problem is None
            return problem or child
        except TimeoutError:
            return failed("ProcessNotStarted", f"the actions were not loaded within {_START_SECONDS:.0f} s")
        finally:
            if not is_ready:
                await self._retire(child)

    def _note_start(self, failure: Failed | None) -> None:
        self.start_failure = failure
        now, before = (self.startable, self.failing) if failure is None else (self.failing, self.startable)
        before.clear()
        now.set()

    async def _retire(self, child: Child) -> None:
        if child.is_usable and hooks_for("child"):
            await child.leave()
        self._all.discard(child)
        await child.close()


def _not_started(failure: Failed) -> RunReport:
    reason = f"no child process can start: {failure.failure.type}: {failure.failure.message}"
    return RunReport(outcome=Interrupted(kind="not_started", reason=reason))


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _discard(data: bytes) -> None:
    pass


def _environment(passed: Collection[str]) -> dict[str, str]:
    """Return what the child inherits, with the worker's import path, so that it finds the same modules."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**inherited_environment(passed), "PYTHONPATH": path}
