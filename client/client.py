"""The clients: `AsyncClient` for code with an event loop, `Client` for code without.

In: calls. Out: typed values, or the errors of `errors`. An acknowledged submit is stored (P5), a list keeps
its order (P2), and a wait ends whatever message is lost (P4). `Client` runs an `AsyncClient` in a thread, and
makes a blocking method out of each of its methods.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack
from uuid import uuid4

from aio_pika.abc import AbstractChannel
from pydantic import JsonValue

from turnstile.client.api import Api, Execution, ExecutionPage
from turnstile.client.completions import Completion, Completions
from turnstile.client.errors import ExecutionFailed, Rejected, Unavailable
from turnstile.client.requests import Options, Request, cancel_request_message
from turnstile.client.submission import Replies, RequestSender, Submissions, Submitted
from turnstile.common.api_token import CA_FILE, api_token
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.states import Status
from turnstile.common.requests import PARAMETERS_BYTES_MAX
from turnstile.common.schemas import QueueStats

P = ParamSpec("P")
Result = TypeVar("Result")

# Inside the class, `list` is the name of a method.
SubmittedOrRejected = list[Submitted | Rejected]
CompletionList = list[Completion]


class AsyncClient:
    """Talks to Turnstile while the `async with` block lasts. Safe to share between the tasks of one loop."""

    def __init__(
        self,
        *,
        amqp_url: str = "amqp://guest:guest@127.0.0.1:5672/",
        http_url: str = "http://127.0.0.1:8000",
        token: str | None = None,
        ca_file: str | None = None,
        answer_timeout: str | float = 30.0,
        parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
        name: str = "turnstile-client",
    ) -> None:
        """`name` names the connections in the broker; `token` is the bearer token of the HTTP API.

        The default of `token` is TURNSTILE_API_TOKEN, or the content of the file TURNSTILE_API_TOKEN_FILE.
        `ca_file`, or TURNSTILE_API_CA_FILE, is the authority that signed the API's certificate.

        `answer_timeout` limits each submit and cancel with all repeats, like `30s` or seconds;
        `parameters_bytes_max` is the executor's setting of that name.
        """
        self._answer_timeout_seconds = parse_duration(answer_timeout)
        queues = f"client.{uuid4()}"
        self._publisher = Publisher(
            amqp_url,
            name=f"{name}-publisher",
            declare=_check_exchange,
            # Short: the request sender repeats, and must see its own deadlines.
            timeouts=BrokerTimeouts(wait_seconds=0.5),
        )
        self._consumer = ConsumerConnection(amqp_url, name=f"{name}-consumer")
        self._api = Api(
            http_url,
            token=api_token(os.environ) if token is None else token,
            ca_file=os.environ.get(CA_FILE) if ca_file is None else ca_file,
        )
        self._sender = RequestSender(self._publisher)
        self._replies = Replies(self._consumer, self._sender, queue=f"{queues}.answers")
        self._completions = Completions(self._consumer, self._api, queue=f"{queues}.ends")
        self._submissions = Submissions(
            self._replies,
            timeout_seconds=self._answer_timeout_seconds,
            parameters_bytes_max=parameters_bytes_max,
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to connect; calls wait for the connection."""
        assert self._running is None, "a client is for one `async with`"
        self._running = asyncio.create_task(self._run(), name="turnstile-client")
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

    async def submit(
        self, action_ref: str, parameters: Mapping[str, object] | None = None, **options: Unpack[Options]
    ) -> Submitted:
        """Submit an execution of an action; return once it is stored. The options are those of `Request`.

        Raises Rejected, or Unavailable if no reply arrived in time: then the outcome is unknown, and with an
        idempotency key the request can safely be submitted again.
        """
        (answer,) = await self.submit_many(
            [Request(action_ref=action_ref, parameters=parameters or {}, **options)]
        )
        if isinstance(answer, Rejected):
            raise answer
        return answer

    async def submit_many(self, requests: Iterable[Request]) -> SubmittedOrRejected:
        """Submit many requests in order; return a reply for each, in order.

        Raises Unavailable if one got no reply in time; the others stay submitted.
        """
        return await self._submissions.submit_all(requests)

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
        watched = self._completions.watch()
        submitted = await self.submit(action_ref, parameters, **options)
        # A duplicate may have finished before: then there is no event to wait for.
        read_at_once = submitted.duplicate or not watched
        async with _limit(wait_timeout):
            completion = await self._completions.wait(submitted.execution_id, read_at_once=read_at_once)
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
        async with _limit(timeout):
            return await self._completions.wait(execution_id)

    async def wait_many(
        self,
        execution_ids: Iterable[int],
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> CompletionList:
        """Wait until all executions finished; return their terminal states in the given order."""
        try:
            async with _limit(timeout), asyncio.TaskGroup() as tasks:
                waits = [
                    tasks.create_task(self._completions.wait(each), name=f"wait-{each}")
                    for each in execution_ids
                ]
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
        """Cancel an execution, by its id or its key; return once the broker has the request.

        A waiting execution is cancelled at once, a running one is stopped; `wait` returns the terminal state.
        Raises Rejected, Unavailable.
        """
        message = cancel_request_message(execution_id, idempotency_key, reason)
        give_up_at = asyncio.get_running_loop().time() + self._answer_timeout_seconds
        await self._sender.send([message], give_up_at=give_up_at)

    async def get(self, execution_id: int) -> Execution:
        """Return one execution with its position, the reason it waits for and its attempts (P10)."""
        return await self._api.execution(execution_id)

    async def list(
        self,
        *,
        action_ref: str | None = None,
        status: Sequence[Status] = (),
        concurrency_key: str | None = None,
        priority: int | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ExecutionPage:
        """Return a page of executions, newest first; `cursor` is the `next_cursor` of the previous page."""
        return await self._api.executions(
            {
                "action_ref": action_ref,
                "status": [str(each) for each in status] or None,
                "concurrency_key": concurrency_key,
                "priority": priority,
                "created_after": None if created_after is None else created_after.isoformat(),
                "created_before": None if created_before is None else created_before.isoformat(),
                "limit": limit,
                "cursor": cursor,
            }
        )

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Return the state of the queues of an action."""
        return await self._api.queue_stats(action_ref)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="publisher")
            tasks.create_task(self._consumer.run(), name="consumer")
            tasks.create_task(self._sender.run(), name="sender")
            tasks.create_task(self._replies.run(), name="replies")
            tasks.create_task(self._completions.run(), name="completions")


def _limit(timeout: str | float | None) -> asyncio.Timeout:
    return asyncio.timeout(None if timeout is None else parse_duration(timeout))


async def _check_exchange(channel: AbstractChannel) -> None:
    # Not declared: an account that may submit need not be allowed to declare.
    await channel.get_exchange(EXECUTIONS)


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

    submit = _Blocking(AsyncClient.submit)
    submit_many = _Blocking(AsyncClient.submit_many)
    run = _Blocking(AsyncClient.run)
    wait = _Blocking(AsyncClient.wait)
    wait_many = _Blocking(AsyncClient.wait_many)
    cancel = _Blocking(AsyncClient.cancel)
    get = _Blocking(AsyncClient.get)
    list = _Blocking(AsyncClient.list)
    queue_stats = _Blocking(AsyncClient.queue_stats)

    @_as_declared(AsyncClient)
    def __init__(self, **options: Any) -> None:
        """Take the parameters of `AsyncClient`."""
        self._client = AsyncClient(**options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turnstile-client")
        self._started: Future[None] = Future()
        self._ended: Future[None] | None = None

    def __enter__(self) -> Self:
        """Start to connect; calls wait for the connection."""
        assert self._ended is None, "a client is for one `with`"
        self._ended = self._thread.submit(lambda: asyncio.run(self._serve()))
        wait({self._started, self._ended}, return_when=FIRST_COMPLETED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; calls of other threads raise Unavailable."""
        assert self._ended is not None
        with suppress(RuntimeError):
            # The loop is closed already if the thread failed; the next statement raises its error.
            self._open_loop().call_soon_threadsafe(self._stop.set)
        try:
            self._ended.result()
        finally:
            self._thread.shutdown()

    def _wait_for(self, call: Callable[[AsyncClient], Coroutine[Any, Any, Result]]) -> Result:
        loop = self._open_loop()
        answer = asyncio.run_coroutine_threadsafe(call(self._client), loop)
        try:
            return answer.result()
        except CancelledError:
            raise Unavailable("the client was closed before the reply arrived") from None
        finally:
            # Ctrl-C in the calling thread cancels the call in the loop, too.
            answer.cancel()

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            raise RuntimeError("a client works inside its `with` block only")
        return self._loop

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._client:
            self._started.set_result(None)
            await self._stop.wait()
