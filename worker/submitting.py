"""`Action`: a function that was declared as an action, called as before, and submitted with its parameters.

In: the arguments of `submit`. Out: a handle of the client. The parameters are written as JSON by their
annotations, and read back with the check of the worker, so a request that the worker would refuse is not
sent. The client is imported at the first submit: a worker that submits nothing does not load it.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from turnstile.common.domain.errors import Code
from turnstile.worker.context import Context
from turnstile.worker.parameters import InvalidParameters, parameters_of

if TYPE_CHECKING:
    from uuid import UUID

    from turnstile.client import AsyncHandle, Handle, Rejected
    from turnstile.client.requests import ActionRequest, Options
    from turnstile.worker.actions import RegisteredAction

C = ParamSpec("C")
"""The parameters of the function."""
P = ParamSpec("P")
"""Those without its context."""
T = TypeVar("T")
"""What a call of the function returns."""
R = TypeVar("R")
"""The result: what a coroutine returns, or T."""

# What `inspect` reads of a function: with these, an action of an `async def` is a coroutine function.
_OF_FUNCTION: Final = ("__code__", "__defaults__", "__kwdefaults__", "__globals__")


class Action(Generic[C, T, R]):
    """A function that is also an action: call it to run it here, submit it to have a worker run it."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[C, T],
        registered: "RegisteredAction",
        options: "Options | None" = None,
    ) -> None:
        functools.update_wrapper(self, function)
        for name in _OF_FUNCTION:
            if hasattr(function, name):
                self.__dict__[name] = getattr(function, name)
        self._function = function
        self._registered = registered
        self._options = options

    @property
    def ref(self) -> str:
        """The name of the action."""
        return self._registered.definition.ref

    @property
    def function(self) -> Callable[C, T]:
        """The function that was declared."""
        return self._function

    @property
    def registered(self) -> "RegisteredAction":
        """The definition and the function, as a worker loads them."""
        return self._registered

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> T:
        """Call the function, here and now."""
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind like a function in the body of a class."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        """Pickle by name, like a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<action {self.ref!r}: {self.__module__}.{self.__qualname__}>"

    def with_options(self, **options: Unpack["Options"]) -> "Action[C, T, R]":
        """Return the same action, submitted with these options, which are those of `Request`.

        `priority`, `run_at`, `delay`, `idempotency_key`, `concurrency_key`, `timeout`, `ttl`, `callback_url`,
        `metadata`, `traceparent`, `answer_timeout`.
        """
        merged: Any = {**(self._options or {}), **options}
        return Action(self._function, self._registered, merged)

    @overload
    async def submit(  # type: ignore[misc]
        self: Callable[Concatenate[Context, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> "AsyncHandle[R]": ...
    @overload
    async def submit(self, *args: C.args, **kwargs: C.kwargs) -> "AsyncHandle[R]": ...
    async def submit(self, *args: Any, **kwargs: Any) -> "AsyncHandle[R]":
        """Submit an execution with these parameters; return its handle once it is stored.

        The parameters are those of the function without its context. Raises TypeError where they are not,
        Rejected, InvalidSetting, or Unavailable: then the outcome is unknown.
        """
        handle: AsyncHandle[R] = await _client().submit(
            self.ref, self._json(args, kwargs), self._options or {}, self._result_type
        )
        return handle

    @overload
    def submit_sync(  # type: ignore[misc]
        self: Callable[Concatenate[Context, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> "Handle[R]": ...
    @overload
    def submit_sync(self, *args: C.args, **kwargs: C.kwargs) -> "Handle[R]": ...
    def submit_sync(self, *args: Any, **kwargs: Any) -> "Handle[R]":
        """Do what `submit` does, blocking: in code without an event loop."""
        handle: Handle[R] = _client().submit_sync(
            self.ref, self._json(args, kwargs), self._options or {}, self._result_type
        )
        return handle

    @overload
    def request(  # type: ignore[misc]
        self: Callable[Concatenate[Context, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> "ActionRequest[R]": ...
    @overload
    def request(self, *args: C.args, **kwargs: C.kwargs) -> "ActionRequest[R]": ...
    def request(self, *args: Any, **kwargs: Any) -> "ActionRequest[R]":
        """Return what `submit` would submit, for `submit_many` or a client. Raises TypeError, Rejected."""
        return self._request(args, kwargs)

    async def submit_many(
        self, requests: "Iterable[ActionRequest[R]] | Iterable[Mapping[str, object]]"
    ) -> "list[AsyncHandle[R] | Rejected]":
        """Submit many executions in order; return a handle or Rejected for each.

        Each is a request of this action, like `render.request(customer_id=7)`, or a mapping of parameters, of
        which type checkers know nothing. Raises TypeError, before anything is sent, where names of parameters
        are wrong; InvalidSetting; or Unavailable if one got no answer: the others stay submitted.
        """
        answers: list[AsyncHandle[R] | Rejected] = await _client().submit_many(
            self._requests(requests), self._result_type
        )
        return answers

    def submit_many_sync(
        self, requests: "Iterable[ActionRequest[R]] | Iterable[Mapping[str, object]]"
    ) -> "list[Handle[R] | Rejected]":
        """Do what `submit_many` does, blocking."""
        answers: list[Handle[R] | Rejected] = _client().submit_many_sync(
            self._requests(requests), self._result_type
        )
        return answers

    @overload
    def submit_in(  # type: ignore[misc]
        self: Callable[Concatenate[Context, P], object], session: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> "UUID": ...
    @overload
    def submit_in(self, session: Any, /, *args: C.args, **kwargs: C.kwargs) -> "UUID": ...
    def submit_in(self, session: Any, /, *args: Any, **kwargs: Any) -> "UUID":
        """Submit if and when the transaction of `session` commits, as `turnstile.submit_in` does.

        Returns the id of the request, before the commit. The parameters are checked here: raises TypeError or
        Rejected, and the errors of the session's own library.
        """
        ref, parameters = self.ref, self._json(args, kwargs)
        request_id: UUID = _transactions().submit_in(session, ref, parameters, **(self._options or {}))
        return request_id

    @overload
    async def submit_in_async(  # type: ignore[misc]
        self: Callable[Concatenate[Context, P], object], session: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> "UUID": ...
    @overload
    async def submit_in_async(self, session: Any, /, *args: C.args, **kwargs: C.kwargs) -> "UUID": ...
    async def submit_in_async(self, session: Any, /, *args: Any, **kwargs: Any) -> "UUID":
        """Do what `submit_in` does, in a session with an event loop."""
        ref, parameters = self.ref, self._json(args, kwargs)
        request_id: UUID = await _transactions().submit_in_async(
            session, ref, parameters, **(self._options or {})
        )
        return request_id

    def _requests(
        self, given: "Iterable[ActionRequest[R]] | Iterable[Mapping[str, object]]"
    ) -> "list[ActionRequest[R] | Rejected]":
        from turnstile.client.errors import Rejected

        requests: list[ActionRequest[R] | Rejected] = []
        for each in given:
            if isinstance(each, Mapping):
                try:
                    requests.append(self._request((), each))
                except Rejected as rejected:
                    requests.append(rejected)
            elif each.action_ref == self.ref:
                requests.append(each)
            else:
                raise TypeError(f"a request of {each.action_ref} cannot be submitted as {self.ref}")
        return requests

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "ActionRequest[R]":
        from turnstile.client.requests import ActionRequest

        return ActionRequest(
            action_ref=self.ref,
            parameters=self._json(args, kwargs),
            result_type=self._result_type,
            **(self._options or {}),
        )

    def _json(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
        return _writer_of(self._function).write(self.ref, args, kwargs)

    @property
    def _result_type(self) -> Any:
        return _writer_of(self._function).result_type


class Declare(Protocol):
    """Makes an `Action` of a function."""

    @overload
    def __call__(
        self, function: Callable[C, Coroutine[Any, Any, R]], /
    ) -> Action[C, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[C, R], /) -> Action[C, R, R]: ...


class _ParametersWriter:
    """Writes the arguments of one function as the JSON parameters of a request."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._reader = parameters_of(function)
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
        expected = [each for name, each in signature.parameters.items() if name != self._reader.context_name]
        self._signature = signature.replace(parameters=expected)
        self._hints = hints
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self.result_type = hints.get("return", Any)

    def write(self, ref: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
        """Return the parameters as JSON values; raises TypeError, Rejected."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{ref}: {error}; the parameters are {self._signature}") from None
        written = self.written(bound.arguments)
        try:
            self._reader.check(to_json(written, inf_nan_mode="constants").decode())
        except InvalidParameters as error:
            raise _rejected(str(error)) from None
        return written

    def written(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Return the JSON values of arguments by name, which are not checked; raises Rejected."""
        written: dict[str, object] = {}
        for name, value in arguments.items():
            parameter = self._signature.parameters.get(name)
            if parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
                written |= {key: self._written(name, key, each) for key, each in value.items()}
            else:
                written[name] = self._written(name, name, value)
        return written

    def _written(self, name: str, key: str, value: object) -> object:
        from turnstile.client.masked_secrets import masked_secret

        adapter = self._adapters.get(name)
        if adapter is None:
            adapter = self._adapters[name] = TypeAdapter(self._hints.get(name, Any))
        try:
            # By the names, and in the shape, in which the worker reads them.
            written = adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="none")
            problem = masked_secret(value, written, path=(key,), adapter=adapter)
        except (PydanticSerializationError, ValueError) as error:
            raise _rejected(f"{key}: cannot be written as JSON: {error}") from None
        if problem is not None:
            raise _rejected(problem)
        return written


def json_of_parameters(
    function: Callable[..., Any] | None, parameters: Mapping[str, Any]
) -> dict[str, object]:
    """Return parameters as a submission of the function writes them, unchecked; raises Rejected.

    None: an action without a function.
    """
    return _writer_of(function or _any_parameters).written(parameters)


def result_type_of(function: Callable[..., Any] | None) -> Any:
    """Return the annotation of what a function returns; Any without one."""
    return _writer_of(function or _any_parameters).result_type


def _any_parameters(**parameters: object) -> Any: ...


@functools.cache
def _writer_of(function: Callable[..., Any]) -> _ParametersWriter:
    return _ParametersWriter(function)


def _client() -> Any:
    from turnstile.client import default

    return default


def _transactions() -> Any:
    from turnstile.client import transactions

    return transactions


def _rejected(message: str) -> Exception:
    from turnstile.client.errors import Rejected

    return Rejected(Code.INVALID_PARAMETERS, message)
