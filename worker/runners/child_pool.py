"""Runs plain functions in child processes.

In: a `Call`. Out: its report. At most `size` processes, each with one call at a time, kept for the next one
since an interpreter takes 100 ms and more to start; one that was stopped or died is replaced.
Next: `worker.runners.child`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from turnstile.common.domain.outcomes import Completed, Failed
from turnstile.worker.attempt_log import LogTail, log_in_worker
from turnstile.worker.judgement import failed
from turnstile.worker.runners.child import Child
from turnstile.worker.runners.child_protocol import Invoke
from turnstile.worker.runners.guardian import Guardian
from turnstile.worker.runners.report import Call, RunLimits, RunReport
from turnstile.worker.runners.stopping import Stop, StoppableTask, run_until_stopped

_START_SECONDS: Final = 60.0
"""Longest start of a child: an interpreter and the imports of the user's modules."""


class ChildRunner:
    """Runs functions of the modules `targets`, or what the call's entrypoint names; close it at the end."""

    def __init__(self, targets: Sequence[str], *, size: int, limits: RunLimits, guardian: Guardian) -> None:
        self._targets = targets
        self._limits = limits
        self._guardian = guardian
        self._places = asyncio.Semaphore(size)
        # The one used last is used next, so that its memory is warm and the others' may be swapped out.
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def run(self, call: Call) -> RunReport:
        """Run one attempt; the timeout counts from when a process is ready for it."""
        log = call.open_log(self._limits.log_bytes_max)
        async with self._places:
            child = await self._ready_child(call, log)
            if not isinstance(child, Child):
                return RunReport.of(child, log)
            try:
                ended = await self._run_in(child, call, log)
            finally:
                if child.is_usable:
                    self._idle.append(child)
                else:
                    await self._retire(child)
        return RunReport.of(ended, log)

    async def close(self) -> None:
        """End all processes, also such as still run something."""
        self._idle.clear()
        for child in self._all:
            # All are told first, so that their ends are waited for together.
            child.kill()
        for child in list(self._all):
            await self._retire(child)

    async def _run_in(self, child: Child, call: Call, log: LogTail) -> Completed | Failed | Stop:
        pass_on = partial(
            log_in_worker, execution_id=call.execution_id, attempt=call.attempt, action_ref=call.action_ref
        )
        work = asyncio.create_task(child.invoke(_invoke(call), log, pass_on), name=_name(call))
        try:
            return await run_until_stopped(
                work,
                child,
                stop=call.stop,
                timeout_seconds=call.timeout_seconds,
                grace_seconds=self._limits.grace_seconds,
            )
        finally:
            work.cancel()

    async def _ready_child(self, call: Call, log: LogTail) -> Child | Failed | Stop:
        while self._idle:
            child = self._idle.pop()
            if child.is_usable:
                return child
            await self._retire(child)
        work = asyncio.create_task(self._started(log), name=f"{_name(call)}: start of a child")
        return await run_until_stopped(
            work, StoppableTask(work), stop=call.stop, timeout_seconds=None, grace_seconds=0.0
        )

    async def _started(self, log: LogTail) -> Child | Failed | Stop:
        try:
            child = await Child.start(self._targets, limits=self._limits, guardian=self._guardian)
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

    async def _retire(self, child: Child) -> None:
        self._all.discard(child)
        await child.close()


def _invoke(call: Call) -> Invoke:
    return Invoke(
        execution_id=call.execution_id,
        attempt=call.attempt,
        action_ref=call.action_ref,
        entrypoint=call.entrypoint if isinstance(call.entrypoint, str) else None,
        parameters_json=call.parameters_json,
        traceparent=call.traceparent,
    )


def _name(call: Call) -> str:
    return f"execution {call.execution_id} attempt {call.attempt}"
