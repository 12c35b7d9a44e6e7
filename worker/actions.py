"""Declares actions in code and collects them.

In: `@action`, `command_action`, `http_action`, with `schedule`, `use` and `rate`, at import time;
`load_actions` when a worker or child starts. Out: `RegisteredAction` values: the definition, and the function
of a python action.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, TypeVar, Unpack, cast

from pydantic import ValidationError

from turnstile.common.action_definition import ActionDefinition, DeclaredFields
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.invalid_values import explained
from turnstile.common.nearest import did_you_mean
from turnstile.common.schedules import ScheduleDefinition
from turnstile.worker.parameters import ActionDeclarationError, parameters_of
from turnstile.worker.submitting import Action, Declare

Scheduled = TypeVar("Scheduled")


class ActionsNotFound(TurnstileError):
    """The target of `--actions` has no actions; the message is one line that says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisteredAction:
    """An action that a worker can run; equal only to itself."""

    definition: ActionDefinition
    module: str
    """The module that declares it."""
    function: Callable[..., Any] | None = None
    """The function of a python action."""
    schedules: list[ScheduleDefinition] = field(default_factory=list)
    """When it runs by itself; an installation that has a schedule of this name keeps its own."""

    @property
    def runs_in_loop(self) -> bool:
        """Whether it runs in the worker's event loop (`async def`); plain `def` runs in a child process."""
        return inspect.iscoroutinefunction(self.function)


_declared: Final[list[RegisteredAction]] = []
"""Every action of this process, in the order of declaration."""


def action(ref: str, **fields: Unpack[DeclaredFields]) -> Declare:
    """Declare the decorated function as the action `ref`; return an `Action`, which is called like it.

    Raises ActionDeclarationError, at import, for an unknown or invalid field.
    """
    definition = _definition(f"@action({ref!r})", {"ref": ref, "runner": "python"}, fields)
    # The module that uses the decorator: `function` may be wrapped by a decorator of another module.
    module = _module_of_caller()

    def declare(function: Callable[..., Any]) -> Action[..., Any, Any]:
        plain = function.function if isinstance(function, Action) else function
        return Action(plain, _declare(module, definition, plain))

    return cast(Declare, declare)


def command_action(
    ref: str, *, argv: Sequence[str], **fields: Unpack[DeclaredFields]
) -> Action[..., NoReturn, Any]:
    """Declare a command as the action `ref`: parameters are JSON on stdin, the result is JSON on stdout.

    Submit it with any named parameters: `await count_words.submit(path="notes.txt")`.
    """
    fixed = {"ref": ref, "runner": "command", "entrypoint": list(argv)}
    return _without_function(
        _declare(_module_of_caller(), _definition(f"command_action({ref!r})", fixed, fields))
    )


def http_action(ref: str, *, url: str, **fields: Unpack[DeclaredFields]) -> Action[..., NoReturn, Any]:
    """Declare a POST to `url` as the action `ref`; the body of a 2xx response is the result.

    Submit it with any named parameters: `await sync.submit(customer_id=7)`.
    """
    fixed = {"ref": ref, "runner": "http", "entrypoint": url}
    return _without_function(
        _declare(_module_of_caller(), _definition(f"http_action({ref!r})", fixed, fields))
    )


def _without_function(registered: RegisteredAction) -> Action[..., NoReturn, Any]:
    ref = registered.definition.ref

    def only_submitted(**parameters: object) -> NoReturn:
        raise TypeError(f"{ref} has no function to call here: submit it, or use turnstile.testing.run")

    return Action(only_submitted, registered)


def schedule(
    cron: str | None = None, /, *, name: str | None = None, **fields: Any
) -> Callable[[Scheduled], Scheduled]:
    """Declare when the action below runs by itself: by a cron expression, or with `every="15m"`.

    `name` is that of the action unless it is given. Other fields are those of a schedule, such as `timezone`,
    `parameters`, `overlap`, `catch_up` and `jitter`. Raises ActionDeclarationError, at import, for what is
    wrong in them.
    """

    def declare(action: Scheduled) -> Scheduled:
        if not isinstance(action, Action):
            raise ActionDeclarationError(f"@schedule: write it above @action; {action!r} is no action")
        registered = action.registered
        ref = registered.definition.ref
        given = {"name": name or ref, "action_ref": ref, **({} if cron is None else {"cron": cron}), **fields}
        try:
            found = ScheduleDefinition.model_validate(given)
        except ValidationError as error:
            reason = explained(error, whole="definition", model=ScheduleDefinition)
            raise ActionDeclarationError(f"@schedule of {ref!r}: {reason}") from None
        if any(each.name == found.name for each in registered.schedules):
            raise ActionDeclarationError(
                f"@schedule of {ref!r}: two are named {found.name!r}; name one: name='...'"
            )
        registered.schedules.append(found)
        return action

    return declare


def use(resource: str, *, units: int = 1, weight: int = 1) -> Mapping[str, Any]:
    """Return a use of a shared resource, for `uses`: each execution holds `units` of it while it runs.

    `weight`, from 1 to 16, is the action's share where the resource has `order: fair`.
    """
    return {"resource": resource, "units": units, "weight": weight}


def rate(starts: int, per: str | float) -> Mapping[str, Any]:
    """Return a limit of starts, for `rate`: at most `starts` in any time of the length `per`, like '1s'."""
    return {"starts": starts, "per": per}


def load_actions(*targets: str) -> list[RegisteredAction]:
    """Import each `module` or `module:name` and return its actions in the order of their declaration.

    A module's actions are those that it or its imported submodules declare, and those that it imports.
    Raises ActionsNotFound if there are none, ActionDeclarationError if one cannot work or two share a ref.
    """
    found: dict[str, RegisteredAction] = {}
    for target in targets:
        for registered in _actions_of(target):
            ref = registered.definition.ref
            other = found.setdefault(ref, registered)
            if other is not registered:
                raise ActionDeclarationError(
                    f"two actions are named {ref!r}, in {other.module} and {registered.module}; rename one"
                )
            if registered.function is not None:
                parameters_of(registered.function)
    return list(found.values())


def registered_action(value: object) -> RegisteredAction:
    """Return the action that a decorator or `command_action` made of `value`; raises ActionsNotFound."""
    found = _among([value])
    if not found:
        raise ActionsNotFound(f"{value!r} is no action; decorate the function with @action('name')")
    return found[0]


def action_from_entrypoint(ref: str, entrypoint: str) -> RegisteredAction:
    """Return the function `module:function` as the action `ref`; it need not be decorated."""
    module_name, _, name = entrypoint.partition(":")
    function = getattr(_module(entrypoint, module_name), name, None)
    if isinstance(function, Action):
        function = function.function
    if not callable(function):
        raise ActionsNotFound(f"{entrypoint}: module {module_name!r} has no function {name!r}")
    parameters_of(function)
    return RegisteredAction(definition=ActionDefinition(ref=ref), module=module_name, function=function)


def _definition(location: str, fixed: dict[str, Any], fields: DeclaredFields) -> ActionDefinition:
    known = DeclaredFields.__annotations__
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ActionDeclarationError(
            f"{location}: {', '.join(unknown)}: unknown field{did_you_mean(unknown[0], known)}; "
            f"known: {', '.join(sorted(known))}"
        )
    try:
        return ActionDefinition.model_validate(fixed | fields)
    except ValidationError as error:
        reason = explained(error, whole="definition", model=ActionDefinition)
        raise ActionDeclarationError(f"{location}: {reason}") from None


def _module_of_caller() -> str:
    return str(sys._getframe(2).f_globals.get("__name__", "__main__"))


def _declare(
    module: str, definition: ActionDefinition, function: Callable[..., Any] | None = None
) -> RegisteredAction:
    registered = RegisteredAction(definition=definition, module=module, function=function)
    _declared.append(registered)
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
        declared = [each for each in _declared if f"{each.module}.".startswith(f"{module_name}.")]
        found = [*declared, *_among(list(vars(module).values()))]
    if not found:
        raise ActionsNotFound(f"{target}: declares no action; decorate a function with @action('name')")
    return found


def _among(values: Sequence[object]) -> list[RegisteredAction]:
    found = [value.registered if isinstance(value, Action) else value for value in values]
    return [each for each in found if isinstance(each, RegisteredAction)]


def _module(target: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ActionsNotFound(
            f"{target}: cannot be imported from {here}: {error}{_import_location(error, module_name)}"
        ) from error
    except (ValueError, TypeError) as error:
        if module_name and not module_name.startswith("."):
            raise
        raise ActionsNotFound(f"{target!r} is not the name of a module, like 'reports.actions'") from error


def _import_location(error: ModuleNotFoundError, module_name: str) -> str:
    """Return where the module imports another one that is missing; nothing where itself is missing."""
    if f"{module_name}.".startswith(f"{error.name}."):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    found = next((f for f in reversed(frames) if not f.filename.startswith("<frozen ")), None)
    return "" if found is None else f" ({found.filename}, line {found.lineno})"
