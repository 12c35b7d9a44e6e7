"""The clients: `AsyncClient` for code with an event loop, `Client` for code without.

In: calls. Out: typed values, or the errors of `errors`. An acknowledged submit is stored (P5), a list keeps
its order (P2), and a wait ends whatever message is lost (P4). `Client` runs an `AsyncClient` in a thread, and
makes a blocking method out of each of its methods.
"""

import asyncio
import os
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from pydantic import JsonValue

from turnstile.client.api import Api
from turnstile.client.completions import Completion, Seen
from turnstile.client.errors import ExecutionFailed, Rejected, Unavailable
from turnstile.client.events import StatusEvents
from turnstile.client.fields import ActionFields, Filters, KeyFields, Listing, ResourceFields
from turnstile.client.handle import AsyncHandle, Handle
from turnstile.client.http_submission import submitted_of
from turnstile.client.requests import ActionRequest, Options, Request, json_body, request_of
from turnstile.client.schemas import (
    BulkOutcome,
    Execution,
    ExecutionPage,
    LogPage,
    StoredAction,
    StoredKey,
    StoredResource,
    Submission,
    WorkerPage,
)
from turnstile.client.settings import client_settings
from turnstile.client.submission import Submitted
from turnstile.client.transport import OverBroker, OverHttp, Transport
from turnstile.common.api_token import CA_FILE, api_token
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.requests import PARAMETERS_BYTES_MAX
from turnstile.common.schemas import History, HistoryWindow, QueueStats

_AMQP_URL: Final = "amqp://guest:guest@127.0.0.1:5672/"
_HTTP_URL: Final = "http://127.0.0.1:8000"
_ADMISSION_PAUSE_FIRST_SECONDS: Final = 0.02
_ADMISSION_PAUSE_MAX_SECONDS: Final = 1.0
_PAGE_MAX: Final = 1000
"""Most executions on a page of the API."""
_NAMED_MAX: Final = 5
"""Executions that the error of a wait names."""
_CLOSED: Final = "the client was closed before the reply arrived"

P = ParamSpec("P")
Result = TypeVar("Result")

# Inside the classes, `list` is the name of a method.
SubmittedOrRejected = list[Submitted | Rejected]
AsyncHandleOrRejected = list[AsyncHandle[Any] | Rejected]
HandleOrRejected = list[Handle[Any] | Rejected]
CompletionList = list[Completion]
Followed = int | Submitted | AsyncHandle[Any] | Handle[Any]
"""An execution: its id, the answer to its submit, or a handle."""


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of a client that are not the address of a server."""

    answer_timeout: str | float
    parameters_bytes_max: int
    name: str


class AsyncClient:
    """Talks to Turnstile while the `async with` block lasts. Safe to share between the tasks of one loop.

    With `amqp_url` it submits, cancels and waits over the broker, and reads over HTTP. With `http_url` alone,
    it does everything over HTTP.
    """

    def __init__(
        self,
        *,
        amqp_url: str | None = None,
        http_url: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        answer_timeout: str | float = 30.0,
        parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
        name: str = "turnstile-client",
    ) -> None:
        """`name` names the connections in the broker; `token` is the bearer token of the HTTP API.

        Without a URL it uses those of local servers, `amqp://guest:guest@127.0.0.1:5672/` and
        `http://127.0.0.1:8000`; with `amqp_url` alone, the latter. Raises ValueError for an invalid URL.

        The default of `token` is TURNSTILE_API_TOKEN, or the content of the file TURNSTILE_API_TOKEN_FILE.
        `ca_file`, or TURNSTILE_API_CA_FILE, is the authority that signed the API's certificate.

        `answer_timeout` limits each submit and cancel with all repeats, like `30s` or seconds;
        `parameters_bytes_max` is the executor's setting of that name.
        """
        timeout_seconds = parse_duration(answer_timeout)
        self._api = Api(
            http_url or _HTTP_URL,
            token=api_token(os.environ) if token is None else token,
            ca_file=os.environ.get(CA_FILE) if ca_file is None else ca_file,
        )
        self._transport: Transport
        if amqp_url is None and http_url is not None:
            self._transport = OverHttp(
                self._api, timeout_seconds=timeout_seconds, parameters_bytes_max=parameters_bytes_max
            )
        else:
            self._transport = OverBroker(
                amqp_url or _AMQP_URL,
                self._api,
                timeout_seconds=timeout_seconds,
                parameters_bytes_max=parameters_bytes_max,
                name=name,
            )
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Return a client with the settings of the environment; raises InvalidSetting.

        TURNSTILE_AMQP_URL and TURNSTILE_API_URL, of which at least one is set: with TURNSTILE_API_URL alone
        the client uses HTTP alone, with TURNSTILE_AMQP_URL alone it reads from a local API.
        TURNSTILE_API_TOKEN or TURNSTILE_API_TOKEN_FILE, TURNSTILE_API_CA_FILE, TURNSTILE_ANSWER_TIMEOUT, and
        TURNSTILE_PARAMETERS_BYTES_MAX.
        """
        return cls(**{**client_settings(os.environ), **options})

    async def __aenter__(self) -> Self:
        """Start to connect; calls wait for the connection."""
        assert self._running is None, "a client is for one `async with`"
        self._loop = asyncio.get_running_loop()
        self._running = asyncio.create_task(self._transport.run(), name="turnstile-client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        assert self._running is not None
        self._running.cancel()
        try:
            await asyncio.wait({self._running})
            if not self._running.cancelled():
                self._running.result()
        finally:
            await self._api.close()

    async def aopen(self) -> Self:
        """Do what `async with` does at its start: for the start hook of a server. Ends with `aclose`."""
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Do what `async with` does at its end."""
        await self.__aexit__(None, None, None)

    @overload
    async def submit(self, request: ActionRequest[Result], /) -> AsyncHandle[Result]: ...
    @overload
    async def submit(
        self, action_ref: str, parameters: Mapping[str, object] | None = None, **options: Unpack[Options]
    ) -> AsyncHandle[JsonValue]: ...
    async def submit(
        self,
        action_ref: str | ActionRequest[Any],
        parameters: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle[Any]:
        """Submit an execution of an action; return its handle once it is stored.

        The options are those of `Request`. The result is JSON, or of the return type of the action for a
        request that it made (`render.request(...)`). Raises Rejected, or Unavailable if no reply arrived in
        time: then the outcome is unknown, and with an idempotency key the request can safely be submitted
        again.
        """
        request = _request(action_ref, parameters, options)
        return self.handle(await self._submit(request), _result_type(request))

    async def _submit(self, request: Request) -> Submitted:
        (answer,) = await self._submit_all([request])
        if isinstance(answer, Rejected):
            raise answer
        return answer

    async def submit_many(self, requests: Iterable[Request | Mapping[str, object]]) -> AsyncHandleOrRejected:
        """Submit many requests in order; return a handle or Rejected for each, in order.

        A mapping has the fields of `Request`: `{"action_ref": "reports.render", "parameters": {...}}`. Raises
        TypeError for another value, and Unavailable if one got no reply in time; the others stay submitted.
        """
        noted: list[Any] = []
        answers = iter(await self._submit_all(_valid(requests, noted)))
        in_order = [(each if isinstance(each, Rejected) else next(answers), each) for each in noted]
        return [
            answer if isinstance(answer, Rejected) else self.handle(answer, result_type)
            for answer, result_type in in_order
        ]

    async def _submit_all(self, requests: Iterable[Request]) -> SubmittedOrRejected:
        return await self._usable().submit_all(requests)

    async def run(
        self,
        action_ref: str,
        parameters: Mapping[str, object] | None = None,
        *,
        wait_timeout: str | float | None = None,
        **options: Unpack[Options],
    ) -> JsonValue:
        """Submit, wait, and return the result.

        Raises what `submit` and `wait` raise, and ExecutionFailed if the execution did not complete.
        """
        completions = self._usable().completions
        watched = completions.watch()
        submitted = await self._submit(_request(action_ref, parameters, options))
        # A duplicate may have finished before: then there is no event to wait for.
        read_at_once = submitted.duplicate or not watched
        async with _wait_limit(wait_timeout, [submitted.execution_id]) as seen:
            completion = await completions.wait(submitted.execution_id, seen, read_at_once=read_at_once)
        if completion.status is not Status.COMPLETED:
            raise ExecutionFailed(completion.execution_id, completion.status, completion.error)
        return completion.result

    async def wait(
        self,
        execution_id: int,
        timeout: str | float | None = None,  # noqa: ASYNC109  (the blocking client has no asyncio.timeout)
    ) -> Completion:
        """Wait until an execution finished and return its terminal state; `timeout` None: no limit.

        Raises TimeoutError, and Rejected if there is no such execution.
        """
        async with _wait_limit(timeout, [execution_id]) as seen:
            return await self._usable().completions.wait(execution_id, seen)

    async def wait_many(
        self,
        execution_ids: Iterable[int],
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> CompletionList:
        """Wait until all executions finished; return their terminal states in the given order."""
        completions = self._usable().completions
        ids = [*execution_ids]
        try:
            async with _wait_limit(timeout, ids) as seen, asyncio.TaskGroup() as tasks:
                waits = [tasks.create_task(completions.wait(each, seen), name=f"wait-{each}") for each in ids]
        except ExceptionGroup as group:
            # The first error is the cause; the other waits were cancelled because of it.
            raise group.exceptions[0] from None
        return [wait.result() for wait in waits]

    async def cancel(
        self,
        execution_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Cancel an execution, by its id or its key; return once the request was received.

        A waiting execution is cancelled at once, a running one is stopped; `wait` returns the terminal state.
        One that has ended stays as it is.
        Raises Rejected, Unavailable.
        """
        await self._usable().cancel(execution_id, idempotency_key, reason)

    async def get(self, execution_id: int) -> Execution:
        """Return one execution with its position, the reason it waits for and its attempts (P10)."""
        return await self._api.execution(execution_id)

    async def list(
        self, *, limit: int | None = None, cursor: str | None = None, **filters: Unpack[Listing]
    ) -> ExecutionPage:
        """Return a page of executions, newest first; `cursor` is the `next_cursor` of the previous page."""
        return await self._api.executions({**_query(filters), "limit": limit, "cursor": cursor})

    async def list_all(self, **filters: Unpack[Listing]) -> AsyncIterator[Execution]:
        """Yield all executions that match, newest first: `async for execution in client.list_all(...)`."""
        page = await self.list(limit=_PAGE_MAX, **filters)
        while True:
            for execution in page.items:
                yield execution
            if page.next_cursor is None:
                return
            page = await self.list(limit=_PAGE_MAX, cursor=page.next_cursor, **filters)

    async def submission(self, request_id: UUID | str) -> Submission:
        """Return what became of a request that was submitted in a database transaction.

        `request_id` is what `submit_in` returned. Raises Rejected before the commit, and after a rollback.
        """
        return await self._api.submission(_uuid(request_id))

    @overload
    async def admitted(
        self,
        request_id: UUID | str,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> AsyncHandle[JsonValue]: ...
    @overload
    async def admitted(
        self,
        request_id: UUID | str,
        result_type: type[Result],
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> AsyncHandle[Result]: ...
    async def admitted(
        self,
        request_id: UUID | str,
        result_type: Any = Any,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> AsyncHandle[Any]:
        """Wait until a request of a committed transaction is admitted; return the handle of its execution.

        Raises TimeoutError, and Rejected if the request was rejected or does not exist.
        """
        return self.handle(await self._admission(_uuid(request_id), timeout), result_type)

    async def _admission(self, request_id: UUID, limit: str | float | None) -> int:
        pause_seconds = _ADMISSION_PAUSE_FIRST_SECONDS
        remedy = "it goes on, so wait again or longer: client.submission(...) says what became of it"
        async with _limit(limit, lambda within: f"request {request_id} was not admitted {within}; {remedy}"):
            while True:
                with suppress(Unavailable):
                    found = await self._api.submission(request_id)
                    if found.execution_id is not None:
                        return found.execution_id
                    if found.code is not None:
                        raise Rejected(found.code, found.message or "")
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _ADMISSION_PAUSE_MAX_SECONDS)

    async def logs(
        self,
        execution_id: int,
        *,
        attempt: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> LogPage:
        """Return what the attempts of an execution have logged, also while they run.

        `cursor` is the `next_cursor` of the previous page, also of one that had nothing new yet.
        """
        return await self._api.logs(execution_id, {"attempt": attempt, "limit": limit, "cursor": cursor})

    async def retry(
        self,
        execution_id: int,
        *,
        parameters: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncHandle[JsonValue]:
        """Retry an ended execution as a new one; return the handle of that one.

        `parameters` replace all of the ended execution's, and are checked like those of a submission; None:
        the same. Raises Rejected, or Unavailable: with an idempotency key the call can safely be repeated.
        """
        return self.handle(await self._retry(execution_id, parameters, idempotency_key))

    async def _retry(
        self, execution_id: int, parameters: Mapping[str, object] | None, idempotency_key: str | None
    ) -> Submitted:
        body = b"{}" if parameters is None else json_body({"parameters": parameters})
        return submitted_of(await self._api.retry(execution_id, body, idempotency_key))

    async def cancel_many(
        self,
        ids: Sequence[int] | None = None,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> BulkOutcome:
        """Cancel the executions with these ids, or all that match the filters: one call, at most 1000.

        A `next_cursor` in the outcome leads to the rest. `dry_run` only lists them.
        """
        return await self._api.change_many(
            "cancel", {**_bulk(ids, dry_run, limit, cursor, filters), "reason": reason}
        )

    async def retry_many(
        self,
        ids: Sequence[int] | None = None,
        *,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> BulkOutcome:
        """Retry the ended executions with these ids, or all that match the filters: one call, at most 1000.

        A `next_cursor` in the outcome leads to the rest. `dry_run` only lists them. With an idempotency key
        the call can safely be repeated.
        """
        body = _bulk(ids, dry_run, limit, cursor, filters)
        return await self._api.change_many("retry", body, idempotency_key)

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Return the state of the queues of an action."""
        return await self._api.queue_stats(action_ref)

    async def history(self, window: HistoryWindow = "1h", *, action_ref: str | None = None) -> History:
        """Return what executions did over time, of one action or of all: counts by minute, added up.

        `points` are minutes, ten minutes of "24h", or hours of "7d"; `actions` has the busiest ones.
        """
        return await self._api.history({"window": window, "action_ref": action_ref})

    async def action(self, action_ref: str) -> StoredAction:
        """Return an action as it is stored."""
        return await self._api.action(action_ref)

    async def change_action(self, action_ref: str, /, **fields: Unpack[ActionFields]) -> StoredAction:
        """Change fields of an action, like `max_concurrent=5`, and return it; limits take effect at once.

        Fields that are left out stay as they are. Raises Rejected for an unknown or invalid field.
        """
        return await self._api.change_action(action_ref, fields)

    async def pause(self, action_ref: str) -> StoredAction:
        """Let an action admit executions and start none; what runs, runs on."""
        return await self._api.switch_action(action_ref, "pause")

    async def resume(self, action_ref: str) -> StoredAction:
        """Let a paused action start executions again."""
        return await self._api.switch_action(action_ref, "resume")

    async def set_key(self, action_ref: str, key: str, /, **fields: Unpack[KeyFields]) -> StoredKey:
        """Give one concurrency key a limit or a weight of its own; the limit takes effect at once."""
        return await self._api.set_key(action_ref, key, fields)

    async def reset_key(self, action_ref: str, key: str) -> None:
        """Let a concurrency key have the limit and the weight of its action again."""
        await self._api.reset_key(action_ref, key)

    async def resource(self, name: str) -> StoredResource:
        """Return a resource as it is stored."""
        return await self._api.resource(name)

    async def change_resource(self, name: str, /, **fields: Unpack[ResourceFields]) -> StoredResource:
        """Change fields of a resource, like `capacity=5`, and return it; they take effect at once.

        Fields that are left out stay as they are. Raises Rejected for an unknown or invalid field.
        """
        return await self._api.change_resource(name, fields)

    async def workers(
        self, *, state: str | Sequence[str] = (), limit: int | None = None, cursor: str | None = None
    ) -> WorkerPage:
        """Return a page of workers, the newest first; `state`: in this one, or any of several."""
        return await self._api.workers({"state": _listed(state) or None, "limit": limit, "cursor": cursor})

    @overload
    def handle(self, execution: Followed) -> AsyncHandle[JsonValue]: ...
    @overload
    def handle(self, execution: Followed, result_type: type[Result]) -> AsyncHandle[Result]: ...
    def handle(self, execution: Followed, result_type: Any = Any) -> AsyncHandle[Any]:
        """Return a handle of an execution; its result is read as `result_type`, or left as JSON."""
        id_, submitted = _named(execution)
        return AsyncHandle(id=id_, submitted=submitted, result_type=result_type, perform=self._perform)

    async def _status_events(self, execution_id: int) -> StatusEvents:
        self._usable()
        return StatusEvents(self._api, execution_id)

    def _perform(self, call: Callable[[Self], Coroutine[Any, Any, Result]]) -> Awaitable[Result]:
        return call(self)

    def _failure(self) -> BaseException | None:
        """Return what ended the client before it was closed."""
        running = self._running
        if running is None or not running.done() or running.cancelled():
            return None
        return running.exception()

    def _usable(self) -> Transport:
        if self._running is None or self._running.done():
            if (failure := self._failure()) is not None:
                raise RuntimeError("this client has failed; open another one") from failure
            raise RuntimeError("a client works inside its `async with` block only")
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncClient belongs to another event loop; create one in each loop, or use a Client, "
                "which all threads may share"
            )
        return self._transport


@asynccontextmanager
async def _wait_limit(
    timeout: str | float | None,  # noqa: ASYNC109  (see wait)
    execution_ids: Sequence[int],
) -> AsyncIterator[Seen]:
    """Bound a wait for executions; yields where their statuses are noted."""
    seen: Seen = {}
    async with _limit(timeout, lambda within: _not_ended(execution_ids, seen, within)):
        yield seen


def _not_ended(execution_ids: Sequence[int], seen: Seen, within: str) -> str:
    left = [
        each for each in execution_ids if each not in seen or not is_terminal(seen[each])
    ] or execution_ids
    named = [f"{each} ({seen.get(each, 'its status could not be read')})" for each in left[:_NAMED_MAX]]
    remedy = f"so wait again or longer: client.get({left[0]}) says what it waits for"
    if len(execution_ids) == 1:
        return f"execution {named[0]} has not ended {within}; it goes on, {remedy}"
    more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
    count = f"{len(left)} of {len(execution_ids)} executions have not ended {within}"
    return f"{count}: {', '.join(named)}{more}; they go on, {remedy}"


@asynccontextmanager
async def _limit(
    timeout: str | float | None,  # noqa: ASYNC109  (see wait)
    overdue: Callable[[str], str],
) -> AsyncIterator[None]:
    """Bound a wait; the error of Python has no words."""
    limit = asyncio.timeout(None if timeout is None else parse_duration(timeout))
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        seconds = f"{timeout:g} s" if isinstance(timeout, int | float) else timeout
        raise TimeoutError(overdue(f"within {seconds}")) from error


def _named(execution: Followed) -> tuple[int, Submitted | None]:
    match execution:
        case Submitted():
            return execution.execution_id, execution
        case AsyncHandle() | Handle():
            return execution.id, execution.submitted
        case _:
            return execution, None


def _request(
    action_ref: str | ActionRequest[Any], parameters: Mapping[str, object] | None, options: Options
) -> Request:
    if isinstance(action_ref, ActionRequest):
        return action_ref
    return Request(action_ref=action_ref, parameters=parameters or {}, **options)


def _result_type(request: Request) -> Any:
    return request.result_type if isinstance(request, ActionRequest) else Any


def _valid(requests: Iterable[Request | Mapping[str, object]], noted: list[Any]) -> Iterator[Request]:
    """Yield the requests, which are read as needed; note the type of each result, or why it is rejected."""
    for index, given in enumerate(requests):
        try:
            request = request_of(given, path=f"requests[{index}]")
        except Rejected as rejected:
            noted.append(rejected)
        else:
            noted.append(_result_type(request))
            yield request


def _uuid(request_id: UUID | str) -> UUID:
    try:
        return request_id if isinstance(request_id, UUID) else UUID(request_id)
    except ValueError:
        raise Rejected(Code.INVALID_MESSAGE, f"request_id: {request_id!r:.100} is not a UUID") from None


def _query(filters: Filters | Listing) -> dict[str, str | int | list[str] | None]:
    query: dict[str, Any] = {**filters}
    for name, value in query.items():
        if isinstance(value, datetime):
            query[name] = value.isoformat()
    query["status"] = _listed(filters.get("status")) or None
    metadata = filters.get("metadata") or {}
    if wrong := [key for key in metadata if ":" in key]:
        # In the query of the API the first colon ends the key.
        raise Rejected(
            Code.INVALID_MESSAGE, f"metadata: the key {wrong[0]!r:.200} has a colon; list by another key"
        )
    query["metadata"] = [f"{key}:{value}" for key, value in metadata.items()] or None
    return query


def _bulk(
    ids: Sequence[int] | None, dry_run: bool, limit: int | None, cursor: str | None, filters: Filters
) -> Mapping[str, object]:
    conditions: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if "status" in conditions:
        conditions["status"] = _listed(conditions["status"])
    given = {"ids": ids, "filter": conditions or None, "limit": limit, "cursor": cursor}
    return {name: value for name, value in given.items() if value is not None} | {"dry_run": dry_run}


def _listed(given: str | Sequence[str] | None) -> list[str]:
    """Return one name, or several, as a list."""
    return [str(each) for each in ([given] if isinstance(given, str) else given or ())]


class _Blocking(Generic[P, Result]):
    """A method of `AsyncClient`, run in its event loop while the caller blocks."""

    def __init__(self, method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Result]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, client: "Client", owner: type["Client"]) -> Callable[P, Result]:
        @wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            return client._wait_for(lambda running: self._method(running, *args, **kwargs))

        return call


def _as_declared(
    _: Callable[P, AsyncClient],
) -> Callable[[Callable[..., None]], Callable[Concatenate["Client", P], None]]:
    """Give a constructor the parameters of `AsyncClient`."""

    def typed(constructor: Callable[..., None]) -> Callable[Concatenate["Client", P], None]:
        return constructor

    return typed


class Client:
    """Talks to Turnstile while the `with` block lasts. Safe to share between threads, not across a fork."""

    run = _Blocking(AsyncClient.run)
    wait = _Blocking(AsyncClient.wait)
    wait_many = _Blocking(AsyncClient.wait_many)
    cancel = _Blocking(AsyncClient.cancel)
    get = _Blocking(AsyncClient.get)
    list = _Blocking(AsyncClient.list)
    submission = _Blocking(AsyncClient.submission)
    logs = _Blocking(AsyncClient.logs)
    cancel_many = _Blocking(AsyncClient.cancel_many)
    retry_many = _Blocking(AsyncClient.retry_many)
    queue_stats = _Blocking(AsyncClient.queue_stats)
    history = _Blocking(AsyncClient.history)
    action = _Blocking(AsyncClient.action)
    change_action = _Blocking(AsyncClient.change_action)
    pause = _Blocking(AsyncClient.pause)
    resume = _Blocking(AsyncClient.resume)
    set_key = _Blocking(AsyncClient.set_key)
    reset_key = _Blocking(AsyncClient.reset_key)
    resource = _Blocking(AsyncClient.resource)
    change_resource = _Blocking(AsyncClient.change_resource)
    workers = _Blocking(AsyncClient.workers)

    @_as_declared(AsyncClient)
    def __init__(self, **options: Any) -> None:
        """Take the parameters of `AsyncClient`."""
        self._client = AsyncClient(**options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        # A daemon: a client that is never closed must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="turnstile-client", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._process_id: int | None = None

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Return a client with the settings of the environment, as `AsyncClient.from_env` reads them."""
        return cls(**{**client_settings(os.environ), **options})

    def __enter__(self) -> Self:
        """Start to connect; calls wait for the connection."""
        assert self._process_id is None, "a client is for one `with`"
        self._process_id = os.getpid()
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; calls of other threads raise Unavailable."""
        with suppress(RuntimeError):
            # The loop is closed already if the thread failed; the next statement raises its error.
            self._open_loop().call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @overload
    def submit(self, request: ActionRequest[Result], /) -> Handle[Result]: ...
    @overload
    def submit(
        self, action_ref: str, parameters: Mapping[str, object] | None = None, **options: Unpack[Options]
    ) -> Handle[JsonValue]: ...
    def submit(
        self,
        action_ref: str | ActionRequest[Any],
        parameters: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> Handle[Any]:
        """Do what `AsyncClient.submit` does, blocking."""
        request = _request(action_ref, parameters, options)
        return self.handle(self._wait_for(lambda c: c._submit(request)), _result_type(request))

    def submit_many(self, requests: Iterable[Request | Mapping[str, object]]) -> HandleOrRejected:
        """Do what `AsyncClient.submit_many` does, blocking."""
        answers = self._wait_for(lambda c: c.submit_many(requests))
        return [
            each if isinstance(each, Rejected) else self.handle(each.submitted or each.id, each.result_type)
            for each in answers
        ]

    def retry(
        self,
        execution_id: int,
        *,
        parameters: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Handle[JsonValue]:
        """Do what `AsyncClient.retry` does, blocking."""
        return self.handle(self._wait_for(lambda c: c._retry(execution_id, parameters, idempotency_key)))

    def list_all(self, **filters: Unpack[Listing]) -> Iterator[Execution]:
        """Yield all executions that match, newest first."""
        page = self.list(limit=_PAGE_MAX, **filters)
        while True:
            yield from page.items
            if page.next_cursor is None:
                return
            page = self.list(limit=_PAGE_MAX, cursor=page.next_cursor, **filters)

    @overload
    def admitted(
        self, request_id: UUID | str, *, timeout: str | float | None = None
    ) -> Handle[JsonValue]: ...
    @overload
    def admitted(
        self, request_id: UUID | str, result_type: type[Result], *, timeout: str | float | None = None
    ) -> Handle[Result]: ...
    def admitted(
        self,
        request_id: UUID | str,
        result_type: Any = Any,
        *,
        timeout: str | float | None = None,
    ) -> Handle[Any]:
        """Do what `AsyncClient.admitted` does, blocking."""
        id_ = self._wait_for(lambda c: c._admission(_uuid(request_id), timeout))
        return self.handle(id_, result_type)

    def open(self) -> Self:
        """Do what `with` does at its start: for the start hook of a server's process. Ends with `close`."""
        return self.__enter__()

    def close(self) -> None:
        """Do what `with` does at its end."""
        self.__exit__(None, None, None)

    @overload
    def handle(self, execution: Followed) -> Handle[JsonValue]: ...
    @overload
    def handle(self, execution: Followed, result_type: type[Result]) -> Handle[Result]: ...
    def handle(self, execution: Followed, result_type: Any = Any) -> Handle[Any]:
        """Return a handle of an execution; its result is read as `result_type`, or left as JSON."""
        id_, submitted = _named(execution)
        return Handle(id=id_, submitted=submitted, result_type=result_type, perform=self._wait_for)

    def _wait_for(self, call: Callable[[AsyncClient], Coroutine[Any, Any, Result]]) -> Result:
        answer = self._begin(call)
        try:
            return answer.result()
        except CancelledError:
            raise Unavailable(_CLOSED) from None
        finally:
            # Ctrl-C in the calling thread cancels the call in the loop, too.
            answer.cancel()

    async def _perform(self, call: Callable[[AsyncClient], Coroutine[Any, Any, Result]]) -> Result:
        """Do the call in the client's thread, for a caller in any event loop."""
        answer = self._begin(call)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if answer.cancelled() and (task is None or not task.cancelling()):
                raise Unavailable(_CLOSED) from None
            raise

    def _begin(self, call: Callable[[AsyncClient], Coroutine[Any, Any, Result]]) -> Future[Result]:
        loop = self._open_loop()
        return asyncio.run_coroutine_threadsafe(call(self._client), loop)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._process_id not in (None, os.getpid()):
            raise RuntimeError(
                "this client was started before the process was forked, and works in the parent only; start "
                "a client after the fork, for example in the start hook of the server's workers"
            )
        if self._loop is None or self._loop.is_closed():
            if self._failure is not None:
                raise RuntimeError("this client has failed; open another one") from self._failure
            raise RuntimeError("a client works inside its `with` block only")
        return self._loop

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001  (raised by the thread that closes the client)
            self._failure = error
        finally:
            # Not asyncio.run: at the end of the interpreter it would start a thread, which fails.
            loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            self._started.set()

    def _has_failed(self) -> bool:
        return self._failure is not None or self._client._failure() is not None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._client:
            self._started.set()
            await self._stop.wait()


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
