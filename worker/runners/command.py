"""Runs commands: an argv, never a shell.

In: a `Call`; the parameters are JSON on stdin. Out: the JSON on stdout (no output means null), stderr as the
log. The command inherits the worker's environment without `TURNSTILE_*`, which hold passwords, except the
variables of `RunLimits.variables_passed`, and gets variables that name its execution.
"""

import asyncio
import errno
import os
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any, Final

from turnstile.common.schedules import occurrence_of
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.logs import LogTail
from turnstile.worker.outcome import failed, is_of_sigterm, outcome_of_text, result_too_large
from turnstile.worker.runners.base import (
    Call,
    Interrupted,
    PipeReader,
    ResultBuffer,
    RunLimits,
    RunReport,
    Stop,
    run_until_stopped,
)
from turnstile.worker.runners.supervisor import ProcessGroup, Supervisor, exit_reason, inherited_environment

_STDERR_IN_MESSAGE_CHARS: Final = 1000
# A retry cannot succeed.
_FINAL_ERRNOS: Final = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.E2BIG, errno.ELOOP}
# This machine lacks descriptors, processes or memory, which says nothing about the attempt.
_SCARCE_ERRNOS: Final = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
_SCARCE_SECONDS: Final = 1.0
"""Until an attempt is returned that could not start for want of these: it may be offered again at once."""


class CommandRunner:
    """Runs `call.entrypoint` in a process group of its own."""

    def __init__(self, limits: RunLimits, supervisor: Supervisor) -> None:
        self._limits = limits
        self._supervisor = supervisor

    async def run(self, call: Call) -> RunReport:
        """Run one attempt; it is returned if this machine lacks what a process needs."""
        if not isinstance(call.entrypoint, list) or not call.entrypoint:
            return RunReport(outcome=failed("InvalidEntrypoint", "the argv is missing", retryable=False))
        log = call.open_log(self._limits.log_bytes_max)
        try:
            running = _Running(call, call.entrypoint, log, self._limits, self._supervisor)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _SCARCE_ERRNOS:
                await asyncio.sleep(_SCARCE_SECONDS)
            return RunReport(outcome=_not_started(call.entrypoint[0], error))
        work = asyncio.create_task(running.outcome(), name=call.name)
        try:
            ended = await run_until_stopped(
                work, call.stop, call.run_seconds_max, self._limits.grace_seconds, running.group
            )
        finally:
            running.close()
            work.cancel()
        return RunReport.of(ended, log)


class _Running:
    """A started command with its two pipes."""

    def __init__(
        self, call: Call, argv: list[str], log: LogTail, limits: RunLimits, supervisor: Supervisor
    ) -> None:
        self._log = log
        self._result_bytes_max = limits.result_bytes_max
        self._result = ResultBuffer(limits.result_bytes_max)
        with ExitStack() as here, ExitStack() as on_failure:
            out_read, out_write = os.pipe()
            here.callback(os.close, out_write)
            on_failure.callback(os.close, out_read)
            error_read, error_write = os.pipe()
            here.callback(os.close, error_write)
            on_failure.callback(os.close, error_read)
            # A file in memory: nothing blocks if the command reads its stdin late or never.
            parameters = os.memfd_create("parameters")
            here.callback(os.close, parameters)
            os.write(parameters, call.parameters_json.encode())
            os.lseek(parameters, 0, os.SEEK_SET)
            self.group = ProcessGroup.start(
                argv,
                supervisor=supervisor,
                environment=_environment(call, limits.variables_passed),
                stdin=parameters,
                stdout=out_write,
                stderr=error_write,
            )
            on_failure.pop_all()
        self._stdout = PipeReader(out_read, self._result.write)
        self._stderr = PipeReader(error_read, log.write)

    async def outcome(self) -> Completed | Failed | Stop:
        """Wait for the end, or for a result above the limit, and return the outcome."""
        overflow = asyncio.create_task(self._result.overflowed.wait(), name="result too large")
        try:
            either: set[asyncio.Future[Any]] = {self.group.ended, overflow}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self.group.ended.done():
                self.group.kill()
                await asyncio.wait({self.group.ended})
        finally:
            overflow.cancel()
        self._stdout.drain()
        self._stderr.drain()
        if not self._result.is_complete:
            return result_too_large(self._result.size_bytes, self._result_bytes_max)
        code = self.group.ended.result()
        if self.group.overdue is not None:
            return self.group.overdue
        if code != 0:
            tail = self._log.end(_STDERR_IN_MESSAGE_CHARS).strip()
            reason = f"the command {exit_reason(code)}"
            message = f"{reason}: {tail}" if tail else reason
            return failed("ExitCode", message, by_sigterm=is_of_sigterm(code))
        return outcome_of_text(self._result.content(), self._result_bytes_max)

    def close(self) -> None:
        """Stop reading; kill what still runs if the run was cancelled."""
        self._stderr.drain()
        self._stdout.close()
        self._stderr.close()
        self.group.kill()


def _environment(call: Call, passed: Collection[str]) -> dict[str, str]:
    identity = {
        "TURNSTILE_EXECUTION_ID": str(call.execution_id),
        "TURNSTILE_ATTEMPT": str(call.attempt),
        "TURNSTILE_ACTION_REF": call.action_ref,
    }
    trace = {"TRACEPARENT": call.traceparent} if call.traceparent else {}
    occurrence = occurrence_of(call.idempotency_key)
    if occurrence is not None:
        identity["TURNSTILE_SCHEDULED_FOR"] = occurrence[1].isoformat()
    return inherited_environment(passed) | identity | trace


def _not_started(program: str, error: OSError | ValueError) -> Failed | Interrupted:
    message = f"{program!r} cannot be started: {error}"
    if isinstance(error, OSError) and error.errno in _SCARCE_ERRNOS:
        return Interrupted(kind="not_started", reason=message)
    if isinstance(error, FileNotFoundError):
        return failed("CommandNotFound", message, retryable=False)
    final = isinstance(error, ValueError) or error.errno in _FINAL_ERRNOS
    return failed("CommandNotStarted", message, retryable=not final)
