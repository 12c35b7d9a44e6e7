"""Runs `async def` actions as tasks of the worker's loop.

In: a `Call`. Out: its report. A coroutine can only be cancelled, not killed, and a thread that it waited for
not even that: what runs on is left behind with a warning, while its outcome is told.
Next: `worker.judgement`.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from turnstile.common.domain.outcomes import Completed, Failed
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.attempt_log import LogTail, attempt_logger, log_in_worker
from turnstile.worker.context import Context
from turnstile.worker.judgement import Judge
from turnstile.worker.parameters import parameters_of
from turnstile.worker.runners.report import Call, RunLimits, RunReport
from turnstile.worker.runners.stopping import Stop, StoppableTask, run_until_stopped
from turnstile.worker.runners.threads import ActionThreads, Run, current_run

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.02


class InLoopRunner:
    """Runs the async functions among `actions`."""

    def __init__(self, actions: Mapping[str, RegisteredAction], limits: RunLimits) -> None:
        self._actions = actions
        self._limits = limits
        # The loop itself holds tasks weakly: one that was left behind would vanish in the middle of its work.
        self._tasks: set[asyncio.Task[Completed | Failed]] = set()
        self._left_behind: dict[asyncio.Task[Completed | Failed], Run] = {}
        self._running: set[Run] = set()
        self.threads: Final = ActionThreads()
        """To be the default executor of the loop."""

    @property
    def left_behind(self) -> set[Run]:
        """What still runs although its attempt has ended."""
        return {*self._left_behind.values(), *(self.threads.working - self._running)}

    async def run(self, call: Call) -> RunReport:
        """Run one attempt; `call.action_ref` must be among the actions."""
        log = call.open_log(self._limits.log_bytes_max)
        run = (call.execution_id, call.attempt)
        self._running.add(run)
        try:
            ended = await self._run_until_stopped(call, log, run)
            if isinstance(ended, Stop) and ended.kind == "drain" and run not in self._left_behind.values():
                await self._threads_ended(run)
        finally:
            self._running.discard(run)
        return RunReport.of(ended, log)

    async def _run_until_stopped(self, call: Call, log: LogTail, run: Run) -> Completed | Failed | Stop:
        name = f"execution {call.execution_id} attempt {call.attempt}"
        task = asyncio.create_task(self._judged(call, log), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await run_until_stopped(
                task,
                StoppableTask(task),
                stop=call.stop,
                timeout_seconds=call.timeout_seconds,
                grace_seconds=self._limits.grace_seconds,
            )
        finally:
            if not task.done():
                self._left_behind[task] = run
                task.add_done_callback(self._left_behind.pop)

    async def _threads_ended(self, run: Run) -> None:
        """Give the threads of an attempt that is handed back its grace."""
        until = asyncio.get_running_loop().time() + self._limits.grace_seconds
        while run in self.threads.working:
            if asyncio.get_running_loop().time() >= until:
                fields = {"run": f"threads of execution {run[0]} attempt {run[1]}", "reason": "drain"}
                logger.warning("run_left_behind", extra=fields)
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _judged(self, call: Call, log: LogTail) -> Completed | Failed:
        function = self._actions[call.action_ref].function
        assert function is not None
        current_run.set((call.execution_id, call.attempt))
        context = _context(call, log)
        judge = Judge(result_bytes_max=self._limits.result_bytes_max, write_log=log.write_line)
        with judge:
            judge.returned(await function(**parameters_of(function).read(call.parameters_json, context)))
        return judge.outcome


def _context(call: Call, log: LogTail) -> Context:
    pass_on = partial(
        log_in_worker, execution_id=call.execution_id, attempt=call.attempt, action_ref=call.action_ref
    )
    return Context(
        execution_id=call.execution_id,
        attempt=call.attempt,
        action_ref=call.action_ref,
        traceparent=call.traceparent,
        make_logger=lambda: attempt_logger(call.action_ref, write_line=log.write_line, pass_on=pass_on),
        stop_reason=lambda: call.stop.stop.reason if call.stop.stop else None,
    )
