"""Creates the runners, and chooses the runner of an action."""

from collections.abc import Sequence
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Literal, Self, assert_never

from turnstile.worker.actions import RegisteredAction
from turnstile.worker.runners.base import RunLimits, Runner
from turnstile.worker.runners.child import ChildRunner
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.in_loop import InLoopRunner
from turnstile.worker.runners.supervisor import Supervisor

if TYPE_CHECKING:
    import httpx

    from turnstile.worker.runners.http import HttpRunner


class Runners:
    """All runners of a worker; use them as a context."""

    def __init__(
        self,
        actions: Sequence[RegisteredAction],
        targets: Sequence[str],
        *,
        concurrency: int,
        child_processes: int | None = None,
        limits: RunLimits,
        state: SimpleNamespace | None = None,
    ) -> None:
        """`targets` are the modules that `actions` were loaded from: child processes load them again.

        `state` is what the start hooks of this process make.
        """
        self.supervisor = Supervisor()
        self._limits = limits
        self._concurrency = concurrency
        self._client: httpx.AsyncClient | None = None
        self._http: HttpRunner | None = None
        async_actions = {found.definition.ref: found for found in actions if found.runs_in_loop}
        self._async_refs = frozenset(async_actions)
        self.in_loop = InLoopRunner(async_actions, limits, state)
        self.children = ChildRunner(
            targets, size=child_processes or concurrency, limits=limits, supervisor=self.supervisor
        )
        self._command = CommandRunner(limits, self.supervisor)
        if any(found.definition.runner == "http" for found in actions):
            self._http = self._http_runner()

    def runner_for(self, action_ref: str, runner: Literal["python", "command", "http"]) -> Runner:
        """Return the runner of the action; a python action that was not loaded runs in a child process."""
        match runner:
            case "python":
                return self.in_loop if action_ref in self._async_refs else self.children
            case "command":
                return self._command
            case "http":
                self._http = self._http or self._http_runner()
                return self._http
        assert_never(runner)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        await self.children.close()
        if self._client is not None:
            await self._client.aclose()
        self.supervisor.close()

    def _http_runner(self) -> "HttpRunner":
        # Imported here: it takes a fifth of a worker's start, and few workers run http actions.
        import httpx  # noqa: PLC0415

        from turnstile.worker.runners.http import HttpRunner  # noqa: PLC0415

        # The worker's concurrency is the limit. The pool has none: a request that is stopped while it
        # connects never leaves the pool (httpcore 1.0), so any limit would be used up in time.
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=self._concurrency)
        self._client = httpx.AsyncClient(limits=pool, follow_redirects=False)
        return HttpRunner(self._limits, self._client)
