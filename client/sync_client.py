"""The client for code without an event loop: the asynchronous one, run in a thread of its own.

In: plain calls from any thread. Out: what `AsyncClient` returns and raises. No method is written twice:
`_Blocking` turns each into a blocking one with the same arguments. Next: `async_client`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from turnstile.client.async_client import AsyncClient
from turnstile.client.errors import Unavailable

P = ParamSpec("P")
Result = TypeVar("Result")


class _Blocking(Generic[P, Result]):
    """A method of `AsyncClient`, called in its loop and waited for."""

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
        """Take what `AsyncClient` takes."""
        self._client = AsyncClient(**options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turnstile-client")
        self._started: Future[None] = Future()
        self._ended: Future[None] | None = None

    def __enter__(self) -> Self:
        """Start to connect; what needs a connection waits for it."""
        assert self._ended is None, "a client is for one `with`"
        self._ended = self._thread.submit(lambda: asyncio.run(self._serve()))
        wait({self._started, self._ended}, return_when=FIRST_COMPLETED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; what other threads still wait for raises Unavailable."""
        assert self._ended is not None
        with suppress(RuntimeError):
            # Closed already where the thread has failed; then the next line raises what it failed of.
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
            raise Unavailable("the client was closed before the answer came") from None
        finally:
            # Ctrl-C in the waiting thread ends the call in the loop, too.
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
