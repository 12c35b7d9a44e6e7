"""Declares actions in code and collects them.

In: `@action`, `command_action`, `http_action` at import time; `load_actions` at the start of the worker and
of each child. Out: `RegisteredAction` values: the definition, and the function where there is one.
Next: `worker.parameters` checks what the function is called with, `worker.runners` runs it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition, RetryDefinition
from turnstile.common.domain.errors import TurnstileError
from turnstile.worker.parameters import ActionDeclarationError, parameters_of


class ActionsNotFound(TurnstileError):
    """What `--actions` names has no actions; the message is one line that says why."""


class ActionFields(TypedDict, total=False):
    """The fields of a definition that may be given in code; see `ActionDefinition` for each."""

    max_concurrent: int | None
    concurrency_key: str | None
    submitter_keys: bool
    timeout: str | float | None
    ttl: str | float | None
    retry: RetryDefinition | Mapping[str, str | float]
    on_worker_lost: Literal["requeue", "abandon"]
    max_reclaims: int
    pool: str
    when_full: Literal["enqueue", "reject"]
    max_queued: int | None
    paused: bool
    callback_url: str | None
    keep_for: str | float | None
    keep_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisteredAction:
    """An action that a worker can run; equal only to itself."""

    definition: ActionDefinition
    module: str
    """The module that declares it."""
    function: Callable[..., Any] | None = None
    """What a python action calls."""

    @property
    def runs_in_loop(self) -> bool:
        """Whether it runs in the worker's event loop: `async def` does, plain `def` gets a process."""
        return inspect.iscoroutinefunction(self.function)


F = TypeVar("F", bound=Callable[..., Any])

_DECLARED: Final = "__turnstile_actions__"
"""The name under which a module holds what it declares, in its own namespace."""

_by_function: Final[dict[int, RegisteredAction]] = {}
"""Finds the action of a function that another module imported by name; the values keep the ids valid."""


def action(ref: str, **fields: Unpack[ActionFields]) -> Callable[[F], F]:
    """Declare the decorated function as the action `ref`; the function itself stays as it is.

    Raises ActionDeclarationError, at import, for a field that is unknown or wrong.
    """
    definition = _definition(f"@action({ref!r})", {"ref": ref, "runner": "python"}, fields)
    # The module of the `@`: a function that another decorator wrapped carries that decorator's namespace.
    namespace = sys._getframe(1).f_globals

    def declare(function: F) -> F:
        _by_function[id(function)] = _declare(namespace, definition, function)
        return function

    return declare


def command_action(ref: str, *, argv: Sequence[str], **fields: Unpack[ActionFields]) -> RegisteredAction:
    """Declare a command as the action `ref`: parameters are JSON on stdin, the result is JSON on stdout."""
    fixed = {"ref": ref, "runner": "command", "entrypoint": list(argv)}
    return _declare(sys._getframe(1).f_globals, _definition(f"command_action({ref!r})", fixed, fields))


def http_action(ref: str, *, url: str, **fields: Unpack[ActionFields]) -> RegisteredAction:
    """Declare a POST to `url` as the action `ref`; the body of a 2xx answer is the result."""
    fixed = {"ref": ref, "runner": "http", "entrypoint": url}
    return _declare(sys._getframe(1).f_globals, _definition(f"http_action({ref!r})", fixed, fields))


def load_actions(*targets: str) -> list[RegisteredAction]:
    """Import each `module` or `module:name` and return its actions in the order of their declaration.

    A module's actions are those that it or its imported submodules declare, and those it imported by name.
    Raises ActionsNotFound where there are none, ActionDeclarationError where one cannot work or two share
    a ref.
    """
    found: dict[str, RegisteredAction] = {}
    for target in targets:
        for registered in _actions_of(target):
            ref = registered.definition.ref
            other = found.setdefault(ref, registered)
            if other is not registered:
                raise ActionDeclarationError(
                    f"two actions are called {ref!r}, in {other.module} and {registered.module}; rename one"
                )
            if registered.function is not None:
                parameters_of(registered.function)
    return list(found.values())


def action_from_entrypoint(ref: str, entrypoint: str) -> RegisteredAction:
    """Return the function `module:function` as the action `ref`; it need not be decorated."""
    module_name, _, name = entrypoint.partition(":")
    function = getattr(_module(entrypoint, module_name), name, None)
    if not callable(function):
        raise ActionsNotFound(f"{entrypoint}: module {module_name!r} has no function {name!r}")
    parameters_of(function)
    return RegisteredAction(definition=ActionDefinition(ref=ref), module=module_name, function=function)


def _definition(place: str, fixed: dict[str, Any], fields: ActionFields) -> ActionDefinition:
    known = ActionFields.__annotations__
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ActionDeclarationError(
            f"{place}: {', '.join(unknown)}: no such field; known are: {', '.join(sorted(known))}"
        )
    try:
        return ActionDefinition.model_validate(fixed | fields)
    except ValidationError as error:
        sentences = [
            f"{'.'.join(str(step) for step in problem['loc']) or 'definition'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ActionDeclarationError(f"{place}: {'; '.join(sentences)}") from None


def _declare(
    namespace: dict[str, Any], definition: ActionDefinition, function: Callable[..., Any] | None = None
) -> RegisteredAction:
    module = str(namespace.get("__name__", "__main__"))
    registered = RegisteredAction(definition=definition, module=module, function=function)
    namespace.setdefault(_DECLARED, []).append(registered)
    return registered


def _actions_of(target: str) -> list[RegisteredAction]:
    module_name, _, name = target.partition(":")
    module = _module(target, module_name)
    if name:
        if not hasattr(module, name):
            raise ActionsNotFound(f"{target}: module {module_name!r} has no {name!r}")
        named = getattr(module, name)
        found = _among(named if isinstance(named, list | tuple) else [named])
    else:
        found = [*_declared_in(module_name), *_among(list(vars(module).values()))]
    if not found:
        raise ActionsNotFound(f"{target}: declares no action; decorate a function with @action('name')")
    return found


def _declared_in(module_name: str) -> Iterator[RegisteredAction]:
    for name, module in list(sys.modules.items()):
        if name == module_name or name.startswith(f"{module_name}."):
            yield from vars(module).get(_DECLARED, [])


def _among(values: Sequence[object]) -> list[RegisteredAction]:
    found = [v if isinstance(v, RegisteredAction) else _by_function.get(id(v)) for v in values]
    return [registered for registered in found if registered is not None]


def _module(target: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ActionsNotFound(f"{target}: cannot be imported from {here}: {error}") from error
    except (ValueError, TypeError) as error:
        if module_name and not module_name.startswith("."):
            raise
        raise ActionsNotFound(f"{target!r} is not the name of a module, like 'reports.actions'") from error
