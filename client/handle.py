"""One submitted execution: `AsyncHandle` for code with an event loop, `Handle` for code without.

In: a client, the id, and the type of the result. Out: status, completion, and the result as a value of that
type. A handle works while its client does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from turnstile.client.completions import Completion
from turnstile.client.errors import ExecutionFailed, InvalidResult
from turnstile.client.events import StatusEvent
from turnstile.client.schemas import Execution, LogPage
from turnstile.client.submission import Submitted
from turnstile.common.domain.states import Status
from turnstile.common.invalid_values import explained

if TYPE_CHECKING:
    from turnstile.client.client import AsyncClient

T = TypeVar("T")
R = TypeVar("R")
_Call = Callable[["AsyncClient"], Coroutine[Any, Any, T]]


class Performs(Protocol):
    """Performs a call of an `AsyncClient` where that client runs."""

    def __call__(self, call: _Call[T], /) -> Awaitable[T]:
        """Return the result of `call` to await."""
        ...


class PerformsBlocking(Protocol):
    """Performs a call of an `AsyncClient` while the caller blocks."""

    def __call__(self, call: _Call[T], /) -> T:
        """Return the result of `call`."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Submission(Generic[R]):
    id: int
    """The id of the execution."""
    submitted: Submitted | None = None
    """The answer to the submit: status and position at that time; None if the handle was made from an id."""
    result_type: Any = Any
    """The type of the result, for pydantic."""

    @property
    def execution_id(self) -> int:
        """The same as `id`, as in `Submitted`."""
        return self.id

    @property
    def duplicate(self) -> bool:
        """Whether the submit named an idempotency key that was known; False if it was made from an id."""
        return self.submitted is not None and self.submitted.duplicate

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of execution {self.id}>"

    def _result(self, completion: Completion) -> R:
        if completion.status is not Status.COMPLETED:
            raise ExecutionFailed(completion.execution_id, completion.status, completion.error)
        return typed_result(self.result_type, completion)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class AsyncHandle(_Submission[R]):
    """One execution, in code with an event loop."""

    perform: Performs

    async def result(self, timeout: str | float | None = None) -> R:  # noqa: ASYNC109
        """Wait until it completed and return its result, of the return type of the action.

        `timeout` is like `30s` or seconds; None: no limit. Raises TimeoutError, ExecutionFailed if it ended
        otherwise, and InvalidResult if the result does not fit the type.
        """
        return self._result(await self.wait(timeout))

    async def wait(self, timeout: str | float | None = None) -> Completion:  # noqa: ASYNC109
        """Wait until it ended and return its terminal state. Raises TimeoutError; the execution continues."""
        return await self.perform(lambda client: client.wait(self.id, timeout))

    async def get(self) -> Execution:
        """Return it as it is stored now, with its position and the reason it waits for."""
        return await self.perform(lambda client: client.get(self.id))

    async def status(self) -> Status:
        """Return its present status."""
        return (await self.get()).status

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel it: a waiting one at once, a running one is stopped by its worker."""
        await self.perform(lambda client: client.cancel(self.id, reason=reason))

    async def logs(
        self, *, attempt: int | None = None, limit: int | None = None, cursor: str | None = None
    ) -> LogPage:
        """Return what its attempts have logged, as `client.logs` does."""
        return await self.perform(
            lambda client: client.logs(self.id, attempt=attempt, limit=limit, cursor=cursor)
        )

    async def retry(
        self, *, parameters: Mapping[str, object] | None = None, idempotency_key: str | None = None
    ) -> "AsyncHandle[R]":
        """Retry it, once it has ended, as a new execution; return the handle of that one.

        `parameters` replace all of its own; None: the same.
        """
        retried = await self.perform(lambda client: client._retry(self.id, parameters, idempotency_key))
        return replace(self, id=retried.execution_id, submitted=retried)

    async def events(self) -> AsyncIterator[StatusEvent]:
        """Yield its status now and at each change, the terminal one last.

        Changes arrive about once a second: a status that lasts less may be left out.
        """
        events = await self.perform(lambda client: client._status_events(self.id))
        try:
            while (event := await self.perform(lambda _: events.next())) is not None:
                yield event
        finally:
            await self.perform(lambda _: events.close())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Handle(_Submission[R]):
    """One execution, in code without an event loop."""

    perform: PerformsBlocking

    def result(self, timeout: str | float | None = None) -> R:
        """Do what `AsyncHandle.result` does, blocking."""
        return self._result(self.wait(timeout))

    def wait(self, timeout: str | float | None = None) -> Completion:
        """Wait until it ended and return its terminal state. Raises TimeoutError; the execution continues."""
        return self.perform(lambda client: client.wait(self.id, timeout))

    def get(self) -> Execution:
        """Return it as it is stored now, with its position and the reason it waits for."""
        return self.perform(lambda client: client.get(self.id))

    def status(self) -> Status:
        """Return its present status."""
        return self.get().status

    def cancel(self, reason: str | None = None) -> None:
        """Cancel it: a waiting one at once, a running one is stopped by its worker."""
        self.perform(lambda client: client.cancel(self.id, reason=reason))

    def logs(
        self, *, attempt: int | None = None, limit: int | None = None, cursor: str | None = None
    ) -> LogPage:
        """Return what its attempts have logged, as `client.logs` does."""
        return self.perform(lambda client: client.logs(self.id, attempt=attempt, limit=limit, cursor=cursor))

    def retry(
        self, *, parameters: Mapping[str, object] | None = None, idempotency_key: str | None = None
    ) -> "Handle[R]":
        """Do what `AsyncHandle.retry` does, blocking."""
        retried = self.perform(lambda client: client._retry(self.id, parameters, idempotency_key))
        return replace(self, id=retried.execution_id, submitted=retried)

    def events(self) -> Iterator[StatusEvent]:
        """Yield what `AsyncHandle.events` yields, blocking."""
        events = self.perform(lambda client: client._status_events(self.id))
        try:
            while (event := self.perform(lambda _: events.next())) is not None:
                yield event
        finally:
            self.perform(lambda _: events.close())


def typed_result(result_type: Any, completion: Completion) -> Any:
    """Return the JSON result as a value of that type; raises InvalidResult."""
    if result_type is Any:
        return completion.result
    location = f"execution {completion.execution_id} of {completion.action_ref} completed"
    try:
        adapter = _adapter(result_type)
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise InvalidResult(f"{location}, but its result type cannot be read from JSON: {reason}") from error
    try:
        # As JSON, in which for example a list can be a tuple, and a text an instant.
        return adapter.validate_json(to_json(completion.result))
    except ValidationError as error:
        reasons = explained(error, whole="result")
        raise InvalidResult(f"{location}, but its result is not what was expected: {reasons}") from None


def _adapter(result_type: Any) -> TypeAdapter[Any]:
    try:
        return _kept_adapter(result_type)
    except TypeError:
        # An annotation may be unhashable.
        return TypeAdapter(result_type)


@cache
def _kept_adapter(result_type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(result_type)
