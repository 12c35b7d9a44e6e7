"""What a process does once before its first attempt and once after its last: load a model, open a pool.

In: `@on_start`, `@on_stop` and `@lifespan`, at import time. Out: `Lifespan`, which the worker and each child
process enter with the hooks for them; its `state` is `Context.state`.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeVar, get_args, overload

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["start", "stop", "lifespan"]
Where = Literal["worker", "child"]
"""The worker's process, which runs async actions, or a child process, which runs plain functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One declared hook."""

    kind: Kind
    function: Callable[..., Any]
    where: Where | None = None
    """None: in each process that runs actions."""


_declared: Final[list[Hook]] = []
"""Every hook of this process, in the order of declaration."""


@overload
def on_start(function: F, /) -> F: ...
@overload
def on_start(*, where: Where) -> Callable[[F], F]: ...
def on_start(function: Callable[..., Any] | None = None, /, *, where: Where | None = None) -> Any:
    """Call the decorated function once per process, before its first attempt.

    It takes the state, a namespace that all attempts see as `context.state`, or nothing; it may be `async`.
    `@on_start(where="worker")` is called in the process of each worker alone, also if that runs no actions,
    and `@on_start(where="child")` in child processes alone.
    If it raises, in the worker's process or in a child process, the worker takes no attempts, and calls it
    again after a pause.
    """
    return _declare("start", function, where)


@overload
def on_stop(function: F, /) -> F: ...
@overload
def on_stop(*, where: Where) -> Callable[[F], F]: ...
def on_stop(function: Callable[..., Any] | None = None, /, *, where: Where | None = None) -> Any:
    """Call the decorated function once per process, after its last attempt; it takes what `on_start` takes.

    The last declared one is called first. A process that is killed calls none.
    """
    return _declare("stop", function, where)


@overload
def lifespan(function: F, /) -> F: ...
@overload
def lifespan(*, where: Where) -> Callable[[F], F]: ...
def lifespan(function: Callable[..., Any] | None = None, /, *, where: Where | None = None) -> Any:
    """Enter the context manager that the decorated function returns, once per process; leave it at the end.

    Both kinds are possible: `@lifespan` above `@contextmanager` or `@asynccontextmanager`. `where` is that of
    `on_start`.
    """
    return _declare("lifespan", function, where)


def _declare(kind: Kind, function: Callable[..., Any] | None, where: Where | None) -> Any:
    if where is not None and where not in get_args(Where):
        raise ValueError(f"where: expected 'worker' or 'child', not {where!r}")

    def declare(function: F) -> F:
        _declared.append(Hook(kind=kind, function=function, where=where))
        return function

    return declare if function is None else declare(function)


def hooks_for(where: Where, *, runs_actions: bool = True) -> list[Hook]:
    """Return the hooks that a process calls, of all modules that it has imported.

    One that runs no actions calls those alone that are declared for its kind.
    """
    return [hook for hook in _declared if hook.where == where or (hook.where is None and runs_actions)]


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
