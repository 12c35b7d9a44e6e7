"""Puts the runners together and chooses among them.

In: the actions that the worker loaded, and its bounds. Out: for each action the runner that runs it.
Next: `worker.attempt` makes the calls.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, assert_never

import httpx

from turnstile.worker.actions import RegisteredAction
from turnstile.worker.runners.child_pool import ChildRunner
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.guardian import Guardian
from turnstile.worker.runners.http import HttpRunner
from turnstile.worker.runners.in_loop import InLoopRunner
from turnstile.worker.runners.report import RunLimits, Runner
from turnstile.worker.runners.threads import ActionThreads, Run


class Runners:
    """All runners of a worker; close them, or use them as a context."""

    def __init__(
        self,
        actions: Sequence[RegisteredAction],
        targets: Sequence[str],
        *,
        concurrency: int,
        limits: RunLimits,
    ) -> None:
        """`targets` are the modules that `actions` were loaded from: child processes load them again."""
        self._guardian = Guardian()
        # The worker's concurrency is the bound. The pool has none: a request that is stopped while it
        # connects keeps its place there for good (httpcore 1.0), so any bound would be used up one day.
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
        self._client = httpx.AsyncClient(limits=pool, follow_redirects=False)
        async_actions = {found.definition.ref: found for found in actions if found.runs_in_loop}
        self._async_refs = frozenset(async_actions)
        self._in_loop = InLoopRunner(async_actions, limits)
        self._child = ChildRunner(targets, size=concurrency, limits=limits, guardian=self._guardian)
        self._command = CommandRunner(limits, self._guardian)
        self._http = HttpRunner(limits, self._client)

    def runner_for(self, action_ref: str, runner: Literal["python", "command", "http"]) -> Runner:
        """Return what runs the action; a python action that was not loaded goes to a child process."""
        match runner:
            case "python":
                return self._in_loop if action_ref in self._async_refs else self._child
            case "command":
                return self._command
            case "http":
                return self._http
        assert_never(runner)

    def hold_until(self, deadline_seconds: float | None) -> None:
        """Kill child processes and commands at this instant of CLOCK_BOOTTIME; None: let them run.

        Each call replaces the one before. May be called from any thread.
        """
        self._guardian.hold_until(deadline_seconds)

    @property
    def left_behind(self) -> set[Run]:
        """What async actions still run although they have ended: only the process's end ends it."""
        return self._in_loop.left_behind

    @property
    def threads(self) -> ActionThreads:
        """To be the default executor of the loop that runs the actions."""
        return self._in_loop.threads

    async def close(self) -> None:
        """End the idle children and the guardian."""
        await self._child.close()
        await self._client.aclose()
        self._guardian.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        await self.close()
