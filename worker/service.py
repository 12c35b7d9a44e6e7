"""The composition root of `worker serve`: user code in the main thread, the worker's core in one beside it.

In: settings, the actions of the user's modules, and `stop`, which is SIGTERM. Out: a worker that needs the
broker and nothing else (P16). It registers at once, and takes offers while its start hooks and its child
processes work. When the lease is lost, the core kills the runs and goes on under a new id (P6).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from turnstile.common.broker.errors import BLOCKED
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker import metrics
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.core.outcomes import Failed
from turnstile.worker.core.process import Exit
from turnstile.worker.executor_http import ExecutorHttp
from turnstile.worker.hosted import HostedWorker
from turnstile.worker.lifespan import Lifespan, hooks_for
from turnstile.worker.logs import printing_into_logs
from turnstile.worker.loop_watch import LoopWatch
from turnstile.worker.parameters import schemas_of_function
from turnstile.worker.registration import Differences, worker_config
from turnstile.worker.runners.base import RunLimits
from turnstile.worker.runners.child import ChildRunner
from turnstile.worker.runners.registry import Runners
from turnstile.worker.settings import WorkerSettings
from turnstile.worker.start_notes import WarningRecorder
from turnstile.worker.worker_thread import Crossing, WorkerThread

logger = logging.getLogger(__name__)
_START_FAILED: Final = Episodes(logger, "start_failed", level=logging.ERROR, lasting=True)
_START_PAUSE_FIRST_SECONDS: Final = 1.0
_START_PAUSE_MAX_SECONDS: Final = 30.0
_STARTING: Final = "the start hooks have not ended yet"
_NOT_CONNECTED: Final = "not connected yet"
_UNANSWERED: Final = "no executor answers this worker's heartbeats: nothing starts until one does"


class WorkerService:
    """One worker process."""

    def __init__(
        self,
        settings: WorkerSettings,
        targets: Sequence[str],
        actions: Sequence[RegisteredAction],
        *,
        start_notes: WarningRecorder | None = None,
    ) -> None:
        """`targets` are the modules that `actions` were loaded from: child processes load them again.

        `start_notes` has the warnings of the start, which the worker's page shows.
        """
        self._start_notes = WarningRecorder() if start_notes is None else start_notes
        self._settings = settings
        self._actions = actions
        self._schemas = {
            action.definition.ref: schemas_of_function(action.function)
            for action in actions
            if action.function is not None
        }
        self._targets = targets
        # Plain functions run in child processes, which have hooks of their own.
        has_own_runs = any(action.runs_in_loop for action in actions)
        hooks = hooks_for("worker", runs_actions=has_own_runs)
        self._lifespan = Lifespan(hooks)
        has_child_runs = any(action.function and not action.runs_in_loop for action in actions)
        self._tries_a_child = has_child_runs and bool(hooks_for("child"))
        self._start_error: str | None = _STARTING if hooks or self._tries_a_child else None
        self._hosted: HostedWorker | None = None
        self._thread: WorkerThread[Exit] | None = None

    def readiness(self) -> dict[str, str | None]:
        """Return for each part None, or why it cannot be used."""
        parts: dict[str, str | None] = {}
        if self._start_error is not None:
            parts["actions"] = self._start_error
        hosted = self._hosted
        if hosted is None:
            return {**parts, "broker": _NOT_CONNECTED}
        executor = None if hosted.is_certain else BLOCKED if hosted.is_blocked else _UNANSWERED
        return {**parts, "broker": hosted.broker_error, "executor": executor}

    def degraded(self) -> dict[str, str]:
        """Return what does not work while the servers can be reached, and why."""
        return {"broker": BLOCKED} if self._hosted is not None and self._hosted.is_blocked else {}

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain."""
        for ref, schemas in self._schemas.items():
            if schemas.trouble is not None:
                logger.warning("schema_left_out", extra={"action_ref": ref, "reason": schemas.trouble})
        async with self._runners() as runners:
            asyncio.get_running_loop().set_default_executor(runners.in_loop.threads)
            self._hosted = hosted = self._host(runners, stop)
            self._publish_gauges(hosted)
            self._thread = thread = WorkerThread(hosted.run)
            thread.start()
            try:
                watch = LoopWatch(runners.in_loop, blocked_seconds_max=self._settings.loop_blocked_max)
                with printing_into_logs(), watch.watching():
                    await self._serve(hosted, thread, runners.children, stop)
            finally:
                await thread.abort()
                await self._stopped()
        logger.info("stopped")

    async def _serve(
        self,
        hosted: HostedWorker,
        thread: WorkerThread[Exit],
        children: ChildRunner,
        stop: asyncio.Event,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(self._keep_started(children), name="start hooks")
            stopping = tasks.create_task(stop.wait(), name="stop signal")
            either: set[asyncio.Future[Any]] = {stopping, thread.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            thread.call(hosted.stop)
            await thread.ended
            # An operator drained this worker: it stays idle until its process is stopped.
            await stopping
            starting.cancel()

    def _runners(self) -> Runners:
        settings = self._settings
        return Runners(
            self._actions,
            self._targets,
            concurrency=settings.worker_concurrency,
            child_processes=settings.child_processes,
            limits=RunLimits(
                grace_seconds=settings.stop_grace,
                result_bytes_max=settings.result_bytes_max,
                child_runs_max=settings.child_runs_max,
                child_memory_bytes_max=settings.child_memory_max,
                variables_passed=frozenset(settings.child_environment),
            ),
            state=self._lifespan.state,
        )

    def _host(self, runners: Runners, stopping: asyncio.Event) -> HostedWorker:
        settings = self._settings
        config = worker_config(settings, self._actions, self._schemas, self._start_notes.lines())
        url = settings.api_url
        return HostedWorker(
            config,
            self._actions,
            runners,
            Crossing(asyncio.get_running_loop()),
            amqp_url=settings.amqp_url.get_secret_value(),
            executors=(
                None if url is None else ExecutorHttp(url, settings.bearer_token(), settings.api_ca_file)
            ),
            differences=Differences(self._actions, self._schemas, config.pools),
            log_seconds=settings.log_flush_interval,
            not_ready=self._not_ready(),
            stopping=stopping,
        )

    def _publish_gauges(self, hosted: HostedWorker) -> None:
        metrics.RUNNING.read_from(lambda: hosted.running)
        metrics.CONCURRENCY.read_from(lambda: self._settings.worker_concurrency)
        metrics.LEASE_AGE.read_from(lambda: hosted.lease_age_seconds)
        metrics.LEASE_DURATION.read_from(lambda: self._settings.lease_duration)
        metrics.PUBLISHER_BLOCKED.read_from(lambda: float(hosted.is_blocked))

    # Start hooks and child processes.

    def _set_start_error(self, error: str | None) -> None:
        self._start_error = error
        if self._thread is not None and self._hosted is not None:
            self._thread.call(self._hosted.set_not_ready, self._not_ready())

    def _not_ready(self) -> str | None:
        return None if self._start_error is None else f"actions: {self._start_error}"

    async def _keep_started(self, children: ChildRunner) -> NoReturn:
        """Start this process, and a first child if there are hooks for it; repeat each until it succeeds.

        After that, where a child process could not start, try until one can; meanwhile nothing is taken.
        """
        await self._repeat(self._start_hooks)
        if self._tries_a_child:
            await self._repeat(partial(self._start_child, children))
        self._set_start_error(None)
        while True:
            await children.failing.wait()
            self._set_start_error(_noted(children.start_failure))
            await asyncio.sleep(_START_PAUSE_FIRST_SECONDS)
            await self._repeat(partial(self._start_child, children))
            self._set_start_error(None)

    async def _repeat(self, start: Callable[[], Awaitable[str | None]]) -> None:
        """Repeat `start`, which returns what is wrong, until nothing is."""
        pause_seconds = _START_PAUSE_FIRST_SECONDS
        while (error := await start()) is not None:
            self._set_start_error(error)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _START_PAUSE_MAX_SECONDS)

    async def _start_hooks(self) -> str | None:
        try:
            await self._lifespan.start()
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            kind, message = type(error).__name__, str(error)
            _START_FAILED.broke("worker", error, where="worker", error_type=kind, reason=message)
            return f"a start hook failed: {kind}: {message}"
        _START_FAILED.works("worker", where="worker")
        return None

    async def _start_child(self, children: ChildRunner) -> str | None:
        return _noted(await children.try_start())

    async def _stopped(self) -> None:
        try:
            await self._lifespan.stop()
        except Exception:
            logger.exception("stop_hook_failed")


def _noted(child_failure: Failed | None) -> str | None:
    """Log whether a child process could start; return what is wrong."""
    if child_failure is None:
        _START_FAILED.works("child", where="child")
        return None
    kind, message = child_failure.failure.type, child_failure.failure.message
    location = child_failure.location or "unknown"
    _START_FAILED.failed("child", where="child", error_type=kind, reason=message, location=location)
    return f"a child process cannot start: {kind}: {message}"
