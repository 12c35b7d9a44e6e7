"""Runs `async def` actions as tasks of the worker's event loop.

In: a `Call`. Out: its report. A coroutine can be cancelled but not killed, and a thread that it waits for
cannot even be cancelled: whatever runs on is left behind with a warning, while its outcome is reported. A
worker that must stop finds here what still runs (P6).
"""

import asyncio
import contextvars
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.outcomes import Completed, Failed
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.context import Context
from turnstile.worker.logs import LogTail, printed_to
from turnstile.worker.outcome import OutcomeCatcher
from turnstile.worker.parameters import parameters_of
from turnstile.worker.runners.base import Call, RunLimits, RunReport, Stop, run_until_stopped

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_POLL_SECONDS: Final = 0.02

Run = tuple[ExecutionId, Attempt]

_current_run: Final[ContextVar[Run | None]] = ContextVar("current_run", default=None)
"""Set in the task that runs an action; the tasks and threads that it starts inherit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InLoopRun:
    """An attempt whose action runs in the event loop."""

    execution_id: ExecutionId
    attempt: Attempt
    action_ref: str
    log: LogTail


class ActionThreads(ThreadPoolExecutor):
    """The default executor of the worker's event loop: knows for which attempt each thread works."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="action")
        self._guard = threading.Lock()
        self._working: Counter[Run] = Counter()

    @property
    def working(self) -> set[Run]:
        """The attempts that have a thread; may be read from any thread."""
        with self._guard:
            return set(self._working)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a thread, for the attempt in whose context this is called."""
        future = super().submit(fn, *args, **kwargs)
        run = _current_run.get()
        if run is not None:
            with self._guard:
                self._working[run] += 1
            future.add_done_callback(lambda _: self._done(run))
        return future

    def _done(self, run: Run) -> None:
        with self._guard:
            self._working[run] -= 1
            if not self._working[run]:
                del self._working[run]


class InLoopRunner:
    """Runs the async functions among `actions`."""

    def __init__(
        self,
        actions: Mapping[str, RegisteredAction],
        limits: RunLimits,
        state: SimpleNamespace | None = None,
    ) -> None:
        """`state` is what the contexts of all attempts show as theirs."""
        self._state = state
        self._actions = actions
        self._limits = limits
        # The event loop holds tasks weakly: without this, one could be collected while it runs.
        self._left_behind: dict[asyncio.Task[Completed | Failed], Run] = {}
        self._running: dict[Run, tuple[Call, LogTail]] = {}
        self._run_of_task: WeakKeyDictionary[asyncio.Task[Any], Run] = WeakKeyDictionary()
        self.on_end: Callable[[Run], None] = lambda _: None
        """Called when an attempt has ended, while its log can still be written."""
        self.threads: Final = ActionThreads()
        """To be the default executor of the event loop."""

    @property
    def left_behind(self) -> set[Run]:
        """Attempts that have ended but whose action still runs: only the process's end ends it."""
        return {*self._left_behind.values(), *(self.threads.working - self._running.keys())}

    def run_of(self, task: asyncio.Task[Any]) -> InLoopRun | None:
        """Return the running attempt for which this task works; may be called from any thread."""
        if sys.version_info >= (3, 12):
            run = task.get_context().get(_current_run)
        else:
            run = self._run_of_task.get(task)
        if run is None or run not in self._running:
            return None
        call, log = self._running[run]
        return InLoopRun(
            execution_id=call.execution_id, attempt=call.attempt, action_ref=call.action_ref, log=log
        )

    @contextmanager
    def knowing_tasks(self) -> Iterator[None]:
        """Let `run_of` know the tasks that actions start in the block; Python 3.12 knows their contexts."""
        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        if sys.version_info < (3, 12):
            loop.set_task_factory(self._new_task)
        try:
            yield
        finally:
            loop.set_task_factory(former)

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=loop, context=context)
        run = _current_run.get() if context is None else context.get(_current_run)
        if run is not None:
            self._run_of_task[task] = run
        return task

    async def run(self, call: Call) -> RunReport:
        """Run one attempt; `call.action_ref` must be among the actions."""
        log = call.open_log(self._limits.log_bytes_max)
        run = (call.execution_id, call.attempt)
        self._running[run] = call, log
        try:
            ended = await self._run_until_stopped(call, log, run)
            if isinstance(ended, Stop) and ended.kind == "drain" and run not in self._left_behind.values():
                await self._threads_ended(call, run)
            self.on_end(run)
        finally:
            self._running.pop(run, None)
        return RunReport.of(ended, log)

    async def _run_until_stopped(self, call: Call, log: LogTail, run: Run) -> Completed | Failed | Stop:
        task = _started(self._outcome(call, log), name=call.name)
        if task.done():
            return task.result()
        try:
            return await run_until_stopped(task, call.stop, call.run_seconds_max, self._limits.grace_seconds)
        finally:
            if not task.done():
                self._left_behind[task] = run
                task.add_done_callback(self._left_behind.pop)

    async def _threads_ended(self, call: Call, run: Run) -> None:
        """Wait for the threads of an attempt that is handed back, for the grace period."""
        deadline = asyncio.get_running_loop().time() + self._limits.grace_seconds
        while run in self.threads.working:
            if asyncio.get_running_loop().time() >= deadline:
                fields = {"run": f"threads of {call.name}", "reason": "drain"}
                logger.warning("run_left_behind", extra=fields)
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _outcome(self, call: Call, log: LogTail) -> Completed | Failed:
        function = self._actions[call.action_ref].function
        assert function is not None
        run = (call.execution_id, call.attempt)
        _current_run.set(run)
        task = asyncio.current_task()
        if sys.version_info < (3, 12) and task is not None:
            self._run_of_task[task] = run
        printed_to.set(log)
        catcher = OutcomeCatcher(result_bytes_max=self._limits.result_bytes_max, write_log=log.write_line)
        with catcher:
            arguments = parameters_of(function).read(
                call.parameters_json, lambda: context_of(call, log, self._state)
            )
            catcher.returned(await function(**arguments))
        if task is not None and task.cancelling():
            # An action that cancels its own task as its last act would leave the task without an outcome.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return catcher.outcome


def _started(run: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Return a task that runs `run`; from Python 3.12 on it is done already if nothing was waited for."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(run, loop=asyncio.get_running_loop(), name=name, eager_start=True)
    return asyncio.create_task(run, name=name)


def context_of(call: Call, log: LogTail, state: SimpleNamespace | None) -> Context:
    """Return what the action of this call sees of its attempt."""
    return Context(
        call,
        state=state,
        write_line=log.write_line,
        pass_on=call.log_in_worker,
        stop_reason=lambda: call.stop.stop.reason if call.stop.stop else None,
        report_progress=call.on_progress,
    )
