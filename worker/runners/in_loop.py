"""Runs `async def` actions in the worker's event loop.

In: a `Call`, in the task of its attempt. Out: its report, once the coroutine has ended. A coroutine can be
cancelled but not killed, and a thread that it waits for cannot even be cancelled: a worker that must stop
finds here what still runs (P6).
"""

import asyncio
import contextvars
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.exit_codes import ExitCode
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.context import Context
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.logs import LogTail, printed_to
from turnstile.worker.outcome import NOT_RUN, OutcomeCatcher
from turnstile.worker.parameters import parameters_of
from turnstile.worker.runners.base import Call, RunLimits, RunReport

P = ParamSpec("P")
T = TypeVar("T")

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


class _Running(NamedTuple):
    call: Call
    log: LogTail
    task: asyncio.Task[Any]


class ActionThreads(ThreadPoolExecutor):
    """The default executor of the worker's event loop: knows for which attempt each thread works."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="action")
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._working: Counter[Run] = Counter()

    @property
    def working(self) -> set[Run]:
        """The attempts that have a thread; may be read from any thread."""
        with self._guard:
            return set(self._working)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a thread, for the attempt in whose context this is called."""
        future = super().submit(partial(self._called, fn, *args, **kwargs))
        run = _current_run.get()
        if run is not None:
            with self._guard:
                self._working[run] += 1
            future.add_done_callback(lambda _: self._done(run))
        return future

    def _called(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return fn(*args, **kwargs)
        finally:
            _end_if_forked(self._pid)

    def _done(self, run: Run) -> None:
        with self._guard:
            self._working[run] -= 1
            if not self._working[run]:
                del self._working[run]


class TaskExited(Exception):
    """A task that an action started ended with what ends a process, like `sys.exit()`."""


def _end_if_forked(pid: int) -> None:
    """End this process if it is not `pid`: an action forked it, and it must not go on as a second worker."""
    if os.getpid() != pid:
        os._exit(ExitCode.NOT_STOPPED)


class _Steps(Coroutine[Any, Any, T]):
    """The coroutine of an action: a process that it forked ends where a step returns into the event loop."""

    def __init__(self, work: Coroutine[Any, Any, T], pid: int) -> None:
        self._work = work
        self._pid = pid

    def __getattr__(self, name: str) -> Any:
        # Its name and its frame, as tools show them.
        return getattr(self._work, name)

    def __await__(self) -> Generator[Any, Any, T]:
        return cast("Generator[Any, Any, T]", self)

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        try:
            return self._work.send(value)
        finally:
            _end_if_forked(self._pid)

    def throw(self, *given: Any) -> Any:
        try:
            return self._work.throw(*given)
        finally:
            _end_if_forked(self._pid)

    def close(self) -> None:
        self._work.close()


class _Contained(_Steps[T]):
    """The coroutine of a task that an action started: it may end its task, and not the worker.

    An event loop passes on what ends a process, past the code that waits for the task. No coroutine of our
    own around it: one that is cancelled before its first step would never await it.
    """

    def send(self, value: Any) -> Any:
        try:
            return super().send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise TaskExited(f"a task of the action ended with {error!r}") from error

    def throw(self, *given: Any) -> Any:
        try:
            return super().throw(*given)
        except (SystemExit, KeyboardInterrupt) as error:
            raise TaskExited(f"a task of the action ended with {error!r}") from error


class InLoopRunner:
    """Runs the async functions among `actions`."""

    def __init__(
        self,
        actions: Mapping[str, RegisteredAction],
        limits: RunLimits,
        state: SimpleNamespace | None = None,
    ) -> None:
        """`state` is what the contexts of all attempts show as theirs."""
        self._pid = os.getpid()
        self._state = state
        self._actions = actions
        self._limits = limits
        self._running: dict[Run, _Running] = {}
        self._run_of_task: WeakKeyDictionary[asyncio.Task[Any], Run] = WeakKeyDictionary()
        """Of the tasks that actions started."""
        self.on_end: Callable[[Run], None] = lambda _: None
        """Called when an attempt has ended, while its log can still be written."""
        self.threads: Final = ActionThreads()
        """To be the default executor of the event loop."""

    @property
    def left_behind(self) -> set[Run]:
        """Attempts that have ended but whose threads still run: only the process's end ends them."""
        return self.threads.working - self._running.keys()

    def run_of(self, task: asyncio.Task[Any]) -> InLoopRun | None:
        """Return the running attempt for which this task works; may be called from any thread."""
        own = (run for run, running in list(self._running.items()) if running.task is task)
        run = self._run_of_task.get(task) or next(own, None)
        if run is None or run not in self._running:
            return None
        call, log, _ = self._running[run]
        return InLoopRun(
            execution_id=call.execution_id, attempt=call.attempt, action_ref=call.action_ref, log=log
        )

    @contextmanager
    def owning_tasks(self) -> Iterator[None]:
        """Let `run_of` know the tasks that actions start in the block, and none of them end the process."""
        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        loop.set_task_factory(self._new_task)
        try:
            yield
        finally:
            loop.set_task_factory(former)

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **options: Any,
    ) -> asyncio.Task[T]:
        context: contextvars.Context | None = options.get("context")
        run = _current_run.get() if context is None else context.get(_current_run)
        if run is None:
            return asyncio.Task(work, loop=loop, **options)
        contained = _Contained(work, self._pid) if isinstance(work, Coroutine) else work
        task = asyncio.Task(contained, loop=loop, **options)
        self._run_of_task[task] = run
        return task

    async def run(self, call: Call) -> RunReport:
        """Run one attempt in the task that calls this; `call.action_ref` must be among the actions.

        A stop cancels that task, once when it is requested and once when it is immediate, and the report
        comes when the action has ended: timeouts and grace periods are the caller's.
        """
        log = call.open_log(self._limits.log_bytes_max)
        run, task, stop = (call.execution_id, call.attempt), asyncio.current_task(), call.stop
        assert task is not None
        self._running[run] = _Running(call, log, task)
        _current_run.set(run)
        printed_to.set(log)

        def cancel() -> None:
            task.cancel(None if stop.stop is None else stop.stop.reason)

        stop.listeners.append(cancel)
        try:
            outcome = NOT_RUN if stop.stop is not None else await self._outcome(call, log)
            stop.listeners.remove(cancel)
            if task.cancelling():
                # A cancellation that no await has met yet, as by an action that cancels its own task as its
                # last act, would leave the task without an outcome.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            self.on_end(run)
        finally:
            del self._running[run]
        return RunReport.of(stop.stop or outcome, log)

    async def _outcome(self, call: Call, log: LogTail) -> Completed | Failed:
        function = self._actions[call.action_ref].function
        assert function is not None
        catcher = OutcomeCatcher(result_bytes_max=self._limits.result_bytes_max, write_log=log.write_line)
        with catcher:
            arguments = parameters_of(function).read(
                call.parameters_json, lambda: context_of(call, log, self._state)
            )
            catcher.returned(await _Steps(function(**arguments), self._pid))
        return catcher.outcome


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
