"""The composition root of `worker serve`: one session per worker id, drained on SIGTERM.

When a session loses its lease, it kills its runs, and the next session starts under a new id (P6).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NoReturn

from turnstile.common.broker.errors import BLOCKED
from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.outcomes import Failed
from turnstile.common.lifecycle import done_before, why_not_ready
from turnstile.common.telemetry.logs import Episodes, WarningRecorder
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.lifespan import Lifespan, hooks_for
from turnstile.worker.logs import printing_into_logs
from turnstile.worker.loop_watch import LoopWatch
from turnstile.worker.parameters import schemas_of_function
from turnstile.worker.protocol import schema_state
from turnstile.worker.runners.base import RunLimits
from turnstile.worker.runners.child import ChildRunner
from turnstile.worker.runners.registry import Runners
from turnstile.worker.session import NOT_REGISTERED, Session
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)
_START_FAILED: Final = Episodes(logger, "start_failed", level=logging.ERROR, lasting=True)
_START_PAUSE_FIRST_SECONDS: Final = 1.0
_START_PAUSE_MAX_SECONDS: Final = 30.0

_COMMAND_SECONDS: Final = 10.0
"""A claim or a report that takes longer is repeated on another connection."""


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
        self._lifespan = Lifespan(hooks_for("worker", runs_actions=has_own_runs))
        has_child_runs = any(action.function and not action.runs_in_loop for action in actions)
        self._tries_a_child = has_child_runs and bool(hooks_for("child"))
        self._start_error: str | None = None
        self._database = Database(
            settings.database_url.get_secret_value(),
            application_name="turnstile worker",
            connections_max=settings.database_connections,
            timeouts=DatabaseTimeouts(command_seconds=_COMMAND_SECONDS),
            schema_check=schema_state,
        )
        self._session: Session | None = None

    def readiness(self) -> dict[str, str | None]:
        """Return for each server None, or why it cannot be used."""
        actions: dict[str, str | None] = {}
        if self._start_error is not None:
            actions["actions"] = self._start_error
        if self._session is None:
            return actions or {"database": self._database.last_error, "broker": NOT_REGISTERED}
        database = self._database.last_error or self._session.database_error
        return {**actions, "database": database, "broker": self._session.broker_error}

    def degraded(self) -> dict[str, str]:
        """Return what does not work while the servers can be reached, and why."""
        notice = self._database.schema_notice
        schema = {} if notice is None else {"schema": notice}
        is_blocked = self._session is not None and self._session.is_publisher_blocked
        return schema | ({"broker": BLOCKED} if is_blocked else {})

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain."""
        settings = self._settings
        for ref, schemas in self._schemas.items():
            if schemas.trouble is not None:
                logger.warning("schema_left_out", extra={"action_ref": ref, "reason": schemas.trouble})
        limits = RunLimits(
            grace_seconds=settings.stop_grace,
            result_bytes_max=settings.result_bytes_max,
            child_runs_max=settings.child_runs_max,
            child_memory_bytes_max=settings.child_memory_max,
            variables_passed=frozenset(settings.child_environment),
        )
        async with Runners(
            self._actions,
            self._targets,
            concurrency=settings.worker_concurrency,
            child_processes=settings.child_processes,
            limits=limits,
            state=self._lifespan.state,
        ) as runners:
            asyncio.get_running_loop().set_default_executor(runners.in_loop.threads)
            try:
                # A stop that comes first ends the loop below before its first turn.
                await done_before(self._started(runners.children), stop)
                await done_before(self._database.open(), stop)
                with printing_into_logs(), LoopWatch(runners.in_loop).watching():
                    await self._serve_sessions(runners, stop)
            finally:
                await self._database.close()
                await self._stopped()
        logger.info("stopped")

    async def _serve_sessions(self, runners: Runners, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._repair(runners.children), name="repair-children"),
                tasks.create_task(self._database.watch_schema(), name="watch-schema"),
            ]
            while not stop.is_set():
                self._session = Session(
                    self._settings,
                    self._database,
                    self._actions,
                    runners,
                    start_notes=self._start_notes,
                    schemas=self._schemas,
                    not_ready=lambda: why_not_ready(self.readiness()),
                )
                await self._session.serve(stop)
                self._start_notes.clear()
            for task in background:
                task.cancel()

    async def _started(self, children: ChildRunner) -> None:
        """Start this process, and a first child if there are hooks for it; repeat each until it succeeds."""
        await self._repeat(self._start_hooks)
        if self._tries_a_child:
            await self._repeat(partial(self._start_child, children))

    async def _repair(self, children: ChildRunner) -> NoReturn:
        """Where a child process could not start, try until one can; meanwhile the session takes nothing."""
        while True:
            await children.failing.wait()
            self._start_error = _noted(children.start_failure)
            await asyncio.sleep(_START_PAUSE_FIRST_SECONDS)
            await self._repeat(partial(self._start_child, children))

    async def _repeat(self, start: Callable[[], Awaitable[str | None]]) -> None:
        """Repeat `start`, which returns what is wrong, until nothing is."""
        pause_seconds = _START_PAUSE_FIRST_SECONDS
        while (error := await start()) is not None:
            self._start_error = error
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _START_PAUSE_MAX_SECONDS)
        self._start_error = None

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
