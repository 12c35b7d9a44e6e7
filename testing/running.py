"""Runs one attempt of an action in this process, with the worker's own runners and a real `Context`.

In: an action and its parameters. Out: a `Ran`: status, result or error, and the log. The parameters travel as
JSON and are validated like those of a submission, and the result is read back from JSON: what passes here
passes in a worker. A plain function runs in a thread; in a worker it runs in a process of its own. The start
hooks are called for each attempt, or once within `started`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeVar, assert_never

import httpx
from pydantic import TypeAdapter
from pydantic_core import to_json

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.common.requests import json_text
from turnstile.common.schedules import key_of
from turnstile.worker.actions import RegisteredAction, registered_action
from turnstile.worker.core.outcomes import Completed, Failed, Outcome, failure_of, status_of
from turnstile.worker.lifespan import Lifespan, Where, hooks_for
from turnstile.worker.logs import LogTail, printed_to, printing_into_logs
from turnstile.worker.outcome import OutcomeCatcher
from turnstile.worker.parameters import parameters_of
from turnstile.worker.progress import Progress
from turnstile.worker.runners.base import (
    Call,
    Interrupted,
    RunLimits,
    Runner,
    RunReport,
    Stop,
    StopRequest,
    run_until_stopped,
)
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.http import HttpRunner
from turnstile.worker.runners.in_loop import InLoopRunner, context_of
from turnstile.worker.runners.supervisor import Supervisor
from turnstile.worker.submitting import Action, json_of_parameters, result_type_of

_LIMITS: Final = RunLimits(grace_seconds=2.0)

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran(Generic[R]):
    """How the attempt ended."""

    status: Status
    """The terminal status, if no retry follows."""
    result: Any = None
    """The return value, as JSON gives it back; None unless completed."""
    error_type: str | None = None
    error_message: str | None = None
    retryable: bool = False
    """Whether the retry policy applies: False after a PermanentError, a timeout or a cancel."""
    retry_delay_seconds: float | None = None
    """The delay that a TemporaryError requested."""
    log: str = ""
    """What it logged and printed."""
    progress: tuple[Progress, ...] = ()
    """Each call of `context.progress`; a worker stores about one a second, and the last one."""
    result_type: Any = field(default=Any, repr=False)
    """The annotation of the result."""

    @property
    def value(self) -> R:
        """The result as a value of its annotation, as `handle.result()` gives it; AssertionError without one.

        Raises ValueError if the result does not fit the annotation.
        """
        self.expect()
        adapter: TypeAdapter[R] = TypeAdapter(self.result_type)
        return adapter.validate_json(to_json(self.result))

    def expect(self, status: Status | str = Status.COMPLETED) -> "Ran[R]":
        """Return itself; raises AssertionError with error and log if the status is another one."""
        if self.status != status:
            error = f": {self.error_type}: {self.error_message}" if self.error_type else ""
            raise AssertionError(f"the attempt ended as {self.status}{error}\n{self.log}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the attempt sees of its execution."""

    execution_id: int = 1
    attempt: int = 1
    timeout: str | float | None = None
    """None: the timeout of the action's definition."""
    cancel_after: str | float | None = None
    """The attempt is cancelled so long after its start, as by an operator."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    scheduled_for: datetime | None = None
    """What `context.scheduled_for` is: the occurrence of a schedule; in place of an idempotency key."""
    state: SimpleNamespace | None = None
    """What `context.state` is. None: what the start hooks make that this process has imported."""


class _StartedHooks:
    """The start hooks, called once for all attempts in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runner: asyncio.Runner | None = None) -> None:
        self.loop = loop
        self.runner = runner
        """That of `started`; None in `started_async`."""
        self._lives: dict[Where, Lifespan] = {}

    async def state(self, where: Where) -> SimpleNamespace:
        """Return what the hooks for this kind of process make."""
        if where not in self._lives:
            life = Lifespan(hooks_for(where))
            await life.start()
            self._lives[where] = life
        return self._lives[where].state

    async def stop(self) -> None:
        while self._lives:
            await self._lives.popitem()[1].stop()


_started: Final[list[_StartedHooks]] = []
"""The blocks of `started` and `started_async` that are entered, the innermost last."""


@contextlib.contextmanager
def started() -> Iterator[None]:
    """Call the start hooks once for all calls of `run` in the block, and what ends them after it."""
    # One event loop for all of it: a hook may open a pool that belongs to one.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        hooks = _StartedHooks(runner.get_loop(), runner)
        _started.append(hooks)
        try:
            yield
        finally:
            _started.remove(hooks)
            runner.run(hooks.stop())


@contextlib.asynccontextmanager
async def started_async() -> AsyncIterator[None]:
    """Do what `started` does, for calls of `run_async` in the event loop of the block."""
    hooks = _StartedHooks(asyncio.get_running_loop())
    _started.append(hooks)
    try:
        yield
    finally:
        _started.remove(hooks)
        await hooks.stop()


def run(action: Action[Any, Any, R], /, *, options: RunOptions | None = None, **parameters: object) -> Ran[R]:
    """Run one attempt of an action in this process, and return how it ended; user code never raises here.

    `action` is what `@action`, `command_action` or `http_action` returned. In code with an event loop use
    `run_async`.
    """
    work = run_async(action, options=options, **parameters)
    runner = next((hooks.runner for hooks in reversed(_started) if hooks.runner), None)
    return asyncio.run(work) if runner is None else runner.run(work)


async def run_async(
    action: Action[Any, Any, R], /, *, options: RunOptions | None = None, **parameters: object
) -> Ran[R]:
    """Do what `run` does, in code with an event loop."""
    options = options or RunOptions()
    registered = registered_action(action)
    definition = registered.definition
    log: list[LogTail] = []
    progress: list[Progress] = []
    timeout = definition.timeout if options.timeout is None else parse_duration(options.timeout)
    stop = StopRequest()
    call = Call(
        execution_id=ExecutionId(options.execution_id),
        attempt=Attempt(options.attempt),
        action_ref=definition.ref,
        entrypoint=definition.entrypoint,
        parameters_json=json_text(json_of_parameters(registered.function, parameters)),
        traceparent=None,
        timeout_seconds=timeout,
        stop=stop,
        on_log=log.append,
        on_progress=progress.append,
        metadata_json=json.dumps(dict(options.metadata)),
        concurrency_key=options.concurrency_key,
        idempotency_key=_key_of(definition.ref, options),
    )
    cancel = None
    if options.cancel_after is not None:
        cancel = asyncio.get_running_loop().call_later(
            parse_duration(options.cancel_after), stop.request, "cancel", "cancelled by the test"
        )
    try:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(printing_into_logs())
            state = options.state or await _state(registered, stack)
            report = await _runner(registered, definition, stack, state).run(call)
    finally:
        if cancel is not None:
            cancel.cancel()
    assert not isinstance(report.outcome, Interrupted), "only a worker interrupts an attempt"
    return _ran(report.outcome, report.log, progress, result_type_of(registered.function))


async def _state(registered: RegisteredAction, stack: contextlib.AsyncExitStack) -> SimpleNamespace:
    """Return what the start hooks make: those of the block around, or called for this attempt alone."""
    if registered.function is None:
        return SimpleNamespace()
    loop = asyncio.get_running_loop()
    hooks = next((each for each in reversed(_started) if each.loop is loop), None)
    if hooks is None:
        hooks = _StartedHooks(loop)
        stack.push_async_callback(hooks.stop)
    return await hooks.state("worker" if registered.runs_in_loop else "child")


def _key_of(ref: str, options: RunOptions) -> str | None:
    if options.scheduled_for is None:
        return options.idempotency_key
    return key_of(ref, round(options.scheduled_for.timestamp()))


def _ran(outcome: Outcome, log: str, progress: list[Progress], result_type: Any) -> Ran[Any]:
    failure = failure_of(outcome)
    return Ran(
        status=status_of(outcome),
        result=json.loads(outcome.result_json) if isinstance(outcome, Completed) else None,
        error_type=None if failure is None else failure.type,
        error_message=None if failure is None else failure.message,
        retryable=isinstance(outcome, Failed) and outcome.retryable,
        retry_delay_seconds=outcome.delay_seconds if isinstance(outcome, Failed) else None,
        log=log,
        progress=tuple(progress),
        result_type=result_type,
    )


def _runner(
    registered: RegisteredAction,
    definition: ActionDefinition,
    stack: contextlib.AsyncExitStack,
    state: SimpleNamespace,
) -> Runner:
    match definition.runner:
        case "python":
            if registered.runs_in_loop:
                return LoopRunner(InLoopRunner({definition.ref: registered}, _LIMITS, state), _LIMITS)
            return _ThreadRunner(registered, state)
        case "command":
            supervisor = Supervisor()
            stack.callback(supervisor.close)
            return CommandRunner(_LIMITS, supervisor)
        case "http":
            client = httpx.AsyncClient(follow_redirects=False)
            stack.push_async_callback(client.aclose)
            return HttpRunner(_LIMITS, client)
    assert_never(definition.runner)


class LoopRunner:
    """Runs an async function in this event loop, and keeps its timeout, as the core of a worker would."""

    def __init__(self, runner: InLoopRunner, limits: RunLimits) -> None:
        self._runner = runner
        self._grace_seconds = limits.grace_seconds

    async def run(self, call: Call) -> RunReport:
        """Run one attempt."""
        logs: list[LogTail] = []

        def on_log(log: LogTail) -> None:
            logs.append(log)
            call.on_log(log)

        work = asyncio.create_task(self._runner.run(replace(call, on_log=on_log)), name=call.name)
        running = _Coroutine(work)
        ended = await run_until_stopped(work, call.stop, call.timeout_seconds, self._grace_seconds, running)
        return RunReport.of(ended, logs[0]) if isinstance(ended, Stop) else ended


class _Coroutine:
    """A coroutine, which its runner cancels at each stop."""

    def __init__(self, work: "asyncio.Task[RunReport]") -> None:
        self._work = work

    def terminate(self, stop: object) -> None:
        """Do nothing: it was cancelled."""

    def kill(self) -> None:
        """Cancel it once more."""
        self._work.cancel()


class _ThreadRunner:
    """Runs a plain function in a thread of this process, as a child process of a worker would."""

    def __init__(self, registered: RegisteredAction, state: SimpleNamespace) -> None:
        self._registered = registered
        self._state = state

    async def run(self, call: Call) -> RunReport:
        log = call.open_log(_LIMITS.log_bytes_max)
        work = asyncio.create_task(asyncio.to_thread(self._outcome, call, log), name=call.name)
        running = _Thread()
        ended = await run_until_stopped(work, call.stop, call.timeout_seconds, _LIMITS.grace_seconds, running)
        return RunReport.of(ended, log)

    def _outcome(self, call: Call, log: LogTail) -> Completed | Failed:
        function = self._registered.function
        assert function is not None
        catcher = OutcomeCatcher(result_bytes_max=_LIMITS.result_bytes_max, write_log=log.write_line)
        printed_to.set(log)
        with catcher:
            arguments = parameters_of(function).read(
                call.parameters_json, lambda: context_of(call, log, self._state)
            )
            catcher.returned(function(**arguments))
        return catcher.outcome


class _Thread:
    """A thread sees its stop through its context; nothing can end it."""

    def terminate(self, stop: object) -> None:
        """Do nothing: `Context.cancelled` is true already."""

    def kill(self) -> None:
        """Do nothing: the thread is left behind."""
