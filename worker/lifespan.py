"""What a process does once before its first attempt and once after its last: load a model, open a pool.

In: `@on_start`, `@on_stop` and `@lifespan`, at import time. Out: `Lifespan`, which the worker and each child
process enter with the hooks of their modules; its `state` is `Context.state`.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One declared hook."""

    kind: Literal["start", "stop", "lifespan"]
    function: Callable[..., Any]

    @property
    def package(self) -> str:
        """The top-level package that declares it."""
        return self.function.__module__.partition(".")[0]


_declared: Final[list[Hook]] = []
"""Every hook of this process, in the order of declaration."""


def on_start(function: F) -> F:
    """Call the decorated function once per process, before its first attempt.

    It takes the state, a namespace that all attempts see as `context.state`, or nothing; it may be `async`.
    If it raises, in the worker's process or in a child process, the worker takes no attempts, and calls it
    again after a pause.
    """
    _declared.append(Hook(kind="start", function=function))
    return function


def on_stop(function: F) -> F:
    """Call the decorated function once per process, after its last attempt; it takes what `on_start` takes.

    The last declared one is called first. A process that is killed calls none.
    """
    _declared.append(Hook(kind="stop", function=function))
    return function


def lifespan(function: F) -> F:
    """Enter the context manager that the decorated function returns, once per process; leave it at the end.

    Both kinds are possible: `@lifespan` above `@contextmanager` or `@asynccontextmanager`.
    """
    _declared.append(Hook(kind="lifespan", function=function))
    return function


def declared_hooks() -> list[Hook]:
    """Return the hooks of all modules that this process has imported."""
    return list(_declared)


class Lifespan:
    """The hooks of one process. Started and stopped in the same event loop."""

    def __init__(self, hooks: Sequence[Hook], state: SimpleNamespace | None = None) -> None:
        self.state = SimpleNamespace() if state is None else state
        self._hooks = hooks
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Call the hooks, in order. If one raises, what was started is stopped, and its error is raised."""
        try:
            for hook in self._hooks:
                match hook.kind:
                    case "start":
                        await _call(hook.function, self.state)
                    case "stop":
                        self._stack.push_async_callback(_call, hook.function, self.state)
                    case "lifespan":
                        await self._enter(_arguments(hook.function, self.state))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Call what is to be called at the end, the last declared first."""
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()
        vars(self.state).clear()

    async def _enter(self, manager: Any) -> None:
        match manager:
            case AbstractAsyncContextManager():
                await self._stack.enter_async_context(manager)
            case AbstractContextManager():
                self._stack.enter_context(manager)
            case _:
                raise TypeError(f"lifespan: expected a context manager, not {type(manager).__name__}")


async def _call(function: Callable[..., Any], state: SimpleNamespace) -> None:
    value = _arguments(function, state)
    if inspect.isawaitable(value):
        await value


def _arguments(function: Callable[..., Any], state: SimpleNamespace) -> Any:
    """Call a function with the state, if it takes one."""
    return function(state) if inspect.signature(function).parameters else function()
