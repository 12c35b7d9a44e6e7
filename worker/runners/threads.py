"""The threads that async actions work in, and for which attempt each works.

In: `asyncio.to_thread` and `run_in_executor(None, ...)`, wherever an action calls them. Out: the attempts
that still have a thread. Nobody can end a thread, and a cancelled `to_thread` leaves it running: so a worker
that must stop looks here for what it could not (P6). Next: `worker.runners.in_loop`.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Final, ParamSpec, TypeVar

from turnstile.common.domain.identifiers import Attempt, ExecutionId

P = ParamSpec("P")
T = TypeVar("T")

Run = tuple[ExecutionId, Attempt]
"""One attempt, as far as its threads go."""

current_run: Final[ContextVar[Run | None]] = ContextVar("current_run", default=None)
"""Set in the task that runs an action; whatever that starts inherits it."""


class ActionThreads(ThreadPoolExecutor):
    """The default executor of the worker's loop."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="action")
        self._guard = threading.Lock()
        self._working: Counter[Run] = Counter()

    @property
    def working(self) -> set[Run]:
        """The attempts that have a thread; may be asked from any thread."""
        with self._guard:
            return set(self._working)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it done by a thread, for the attempt in whose context this is called."""
        future = super().submit(fn, *args, **kwargs)
        run = current_run.get()
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
