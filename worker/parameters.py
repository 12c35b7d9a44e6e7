"""Checks an execution's parameters against the annotations of the function that will get them.

In: a function; JSON text. Out: keyword arguments, or `InvalidParameters` that names each wrong field and what
was expected, before the function runs. Next: `worker.judgement` calls the function.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import ErrorDetails

from turnstile.common.domain.errors import TurnstileError
from turnstile.worker.context import Context

_PROBLEMS_MAX: Final = 10


class ActionDeclarationError(TurnstileError, ValueError):
    """An action is declared in a way that cannot work; the message names the place and the remedy."""


class InvalidParameters(TurnstileError):
    """The parameters do not fit the function."""


class ParametersReader:
    """Reads JSON parameters as the keyword arguments of one function."""

    __slots__ = ("_context_name", "_model", "_names")

    def __init__(self, function: Callable[..., Any]) -> None:
        place = f"{function.__module__}.{function.__qualname__}"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ActionDeclarationError(f"{place}: yields; an action returns one value")
        hints = _hints(function, place)
        open_ended = False
        expected: dict[str, inspect.Parameter] = {}
        self._context_name: str | None = None
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise ActionDeclarationError(
                    f"{place}: parameter '{parameter}' cannot be passed by keyword; remove '/' and '*args'"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                open_ended = True
            elif _is_context(hints.get(name)):
                self._context_name = name
            else:
                expected[name] = parameter
        # Neutral field names, the parameters as aliases: a parameter may be called `json` or `_x`.
        self._names = {f"parameter_{index}": name for index, name in enumerate(expected)}
        self._model = _model(place, self._names, expected, hints, open_ended=open_ended)

    def read(self, parameters_json: str, context: Context) -> dict[str, Any]:
        """Return keyword arguments, the context among them if it is wanted; raises InvalidParameters."""
        try:
            checked = self._model.model_validate_json(parameters_json)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            raise InvalidParameters("; ".join(self._sentence(p) for p in problems[:_PROBLEMS_MAX])) from None
        # What was not sent is left to the function's own default.
        arguments = {
            self._names[f]: getattr(checked, f) for f in self._names if f in checked.model_fields_set
        }
        arguments |= checked.model_extra or {}
        if self._context_name is not None:
            arguments[self._context_name] = context
        return arguments

    def _sentence(self, problem: ErrorDetails) -> str:
        path = ".".join(str(step) for step in problem["loc"]) or "parameters"
        known = ", ".join(self._names.values()) or "none"
        match problem["type"]:
            case "extra_forbidden":
                return f"{path}: no such parameter; known are: {known}"
            case "missing":
                return f"{path}: required, but not given"
            case _:
                return f"{path}: {problem['msg']}"


@cache
def parameters_of(function: Callable[..., Any]) -> ParametersReader:
    """Return the reader for `function`; raises ActionDeclarationError if no JSON can be passed to it."""
    return ParametersReader(function)


def _hints(function: Callable[..., Any], place: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise ActionDeclarationError(
            f"{place}: an annotation cannot be read: {error}; import what it names outside `if TYPE_CHECKING`"
        ) from error


def _is_context(annotation: object) -> bool:
    return annotation is Context or Context in get_args(annotation)


def _model(
    place: str,
    names: dict[str, str],
    expected: dict[str, inspect.Parameter],
    hints: dict[str, Any],
    *,
    open_ended: bool,
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for field, name in names.items():
        default = ... if expected[name].default is inspect.Parameter.empty else None
        fields[field] = (hints.get(name, Any), Field(default, alias=name))
    config = ConfigDict(extra="allow" if open_ended else "forbid", protected_namespaces=())
    try:
        return create_model("Parameters", __config__=config, **fields)
    except PydanticUserError as error:
        raise ActionDeclarationError(
            f"{place}: an annotation is of no use for JSON: {str(error).splitlines()[0]}"
        ) from error
