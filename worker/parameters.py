"""Validates an execution's parameters against the annotations of the action's function.

In: a function; JSON text. Out: keyword arguments, or `InvalidParameters` with each wrong field and what was
expected, before the function runs.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from turnstile.common.domain.errors import TurnstileError
from turnstile.common.invalid_values import InvalidValue, invalid_values
from turnstile.worker.context import Context
from turnstile.worker.schemas import ActionSchemas, JsonSchema, parameters_schema, schemas_of

_PROBLEMS_MAX: Final = 10


class ActionDeclarationError(TurnstileError, ValueError):
    """An action's declaration cannot work; the message says where, and how to fix it."""


class InvalidParameters(TurnstileError):
    """The parameters do not fit the function."""


class ParametersReader:
    """Reads JSON parameters as the keyword arguments of one function."""

    __slots__ = ("_context_name", "_defaults", "_model", "_names", "_validate")

    def __init__(self, function: Callable[..., Any]) -> None:
        location = f"{function.__module__}.{function.__qualname__}"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ActionDeclarationError(f"{location}: is a generator; an action returns one value")
        hints = _hints(function, location)
        open_ended = False
        expected: dict[str, inspect.Parameter] = {}
        self._context_name: str | None = None
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise ActionDeclarationError(
                    f"{location}: parameter '{parameter}' cannot be passed by keyword: remove '/' and '*args'"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                open_ended = True
            elif _is_context(hints.get(name)):
                self._context_name = name
            else:
                expected[name] = parameter
        # Neutral field names with the parameters as aliases: a parameter may be called `json` or `_x`.
        self._names = {f"parameter_{index}": name for index, name in enumerate(expected)}
        self._defaults = {
            name: parameter.default
            for name, parameter in expected.items()
            if parameter.default is not inspect.Parameter.empty
        }
        self._model = _model(location, self._names, expected, hints, open_ended=open_ended)
        self._validate = self._model.__pydantic_validator__.validate_json

    def schema(self) -> JsonSchema:
        """Return the JSON Schema of the parameters; what it cannot express, it accepts."""
        return parameters_schema(self._model, self._names, self._defaults)

    def read(self, parameters_json: str, make_context: Callable[[], Context]) -> dict[str, Any]:
        """Return keyword arguments, with a context if the function takes one; raises InvalidParameters."""
        checked = self.check(parameters_json)
        # A parameter that was not sent keeps the function's own default.
        values, sent = vars(checked), checked.model_fields_set
        arguments = {name: values[field] for field, name in self._names.items() if field in sent}
        if checked.model_extra:
            arguments |= checked.model_extra
        if self._context_name is not None:
            arguments[self._context_name] = make_context()
        return arguments

    @property
    def context_name(self) -> str | None:
        """The name of the parameter that receives the context, or None."""
        return self._context_name

    def check(self, parameters_json: str) -> BaseModel:
        """Return the checked parameters; raises InvalidParameters."""
        try:
            checked: BaseModel = self._validate(parameters_json)
        except ValidationError as error:
            invalid = invalid_values(error.errors(include_url=False, include_input=False))
            raise InvalidParameters("; ".join(map(self._message, invalid[:_PROBLEMS_MAX]))) from None
        return checked

    def _message(self, invalid: InvalidValue) -> str:
        path = invalid.path or "parameters"
        if invalid.kind == "extra_forbidden":
            return f"{path}: unknown parameter; known: {', '.join(self._names.values()) or 'none'}"
        return f"{path}: {invalid.sentence}"


@cache
def parameters_of(function: Callable[..., Any]) -> ParametersReader:
    """Return the reader for `function`; raises ActionDeclarationError if JSON cannot be passed to it."""
    return ParametersReader(function)


def schemas_of_function(function: Callable[..., Any]) -> ActionSchemas:
    """Return the schemas of an action's function, as far as they can be derived."""
    return schemas_of(function, parameters_of(function).schema)


def _hints(function: Callable[..., Any], location: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise ActionDeclarationError(
            f"{location}: an annotation cannot be read: {error}; import its names outside `if TYPE_CHECKING`"
        ) from error


def _is_context(annotation: object) -> bool:
    return annotation is Context or Context in get_args(annotation)


def _model(
    location: str,
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
            f"{location}: an annotation cannot be read from JSON: {str(error).splitlines()[0]}"
        ) from error
