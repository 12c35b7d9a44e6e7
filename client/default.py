"""The client with which actions are submitted: one for the process, or the one given to `use_client`.

In: nothing, or a client. Out: a started client. The client of the process is made at the first use from the
environment, runs in a thread of its own, so all threads and event loops share it, and is closed when the
interpreter ends. A forked process makes its own.
"""

import atexit
import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from turnstile.client.client import AsyncClient, Client
from turnstile.client.errors import Rejected
from turnstile.client.handle import AsyncHandle, Handle
from turnstile.client.requests import Options, Request
from turnstile.client.submission import Submitted

_NAME: Final = "turnstile-default"


class _Default:
    """What this process uses."""

    def __init__(self) -> None:
        self.used: AsyncClient | Client | None = None
        """What `use_client` was given."""
        self._own: Client | None = None
        self._making = threading.Lock()
        self._inherited: list[Client | None] = []

    def client(self) -> AsyncClient | Client:
        if self.used is not None:
            return self.used
        with self._making:
            if self._own is not None and self._own._has_failed():
                self.close()
            if self._own is None:
                self._own = Client.from_env(name=_NAME).open()
            return self._own

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            # The callers of a client that failed have its error.
            with suppress(Exception):
                own.close()

    def forget(self) -> None:
        """Forget the client of the parent process; it is kept, so that its sockets are not closed here."""
        self._inherited.append(self._own)
        self._own = None
        self._making = threading.Lock()


_default: Final = _Default()
atexit.register(_default.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_default.forget)


class UsedClient:
    """Restores the former client at the end of a `with` block."""

    def __init__(self, former: AsyncClient | Client | None) -> None:
        self._former = former

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _default.used = self._former


def use_client(client: AsyncClient | Client | None) -> UsedClient:
    """Submit actions with this client, which is open, in all threads; None: with that of the process.

    In a `with` block, until its end. An AsyncClient serves its own event loop only.
    """
    former, _default.used = _default.used, client
    return UsedClient(former)


def current_client() -> Client:
    """Return the client of this process: made from the environment at the first use, shared by all threads.

    It is the one given to `use_client`, if any, and is not to be closed. Raises InvalidSetting, and
    RuntimeError if `use_client` was given an AsyncClient.
    """
    client = _default.client()
    if isinstance(client, AsyncClient):
        raise RuntimeError(
            "the client given to use_client is an AsyncClient, which cannot block: await submit(...), or "
            "give use_client a Client"
        )
    return client


async def submit(
    action_ref: str, parameters: dict[str, object], options: Options, result_type: Any
) -> AsyncHandle[Any]:
    """Submit an action with the default client."""
    client = _default.client()
    request = Request(action_ref=action_ref, parameters=parameters, **options)
    submitted = await client._perform(lambda c: c._submit(request))
    return _async_handle(client, submitted, result_type)


async def submit_many(requests: list[Request | Rejected], result_type: Any) -> list[Any]:
    """Submit requests in order; return a handle or Rejected for each. What is rejected is not sent."""
    client = _default.client()
    valid = [each for each in requests if isinstance(each, Request)]
    answers = iter(await client._perform(lambda c: c._submit_all(valid)))
    in_order = [next(answers) if isinstance(each, Request) else each for each in requests]
    return [_async_handle(client, a, result_type) if isinstance(a, Submitted) else a for a in in_order]


def submit_sync(
    action_ref: str, parameters: dict[str, object], options: Options, result_type: Any
) -> Handle[Any]:
    """Do what `submit` does, blocking."""
    client = current_client()
    request = Request(action_ref=action_ref, parameters=parameters, **options)
    return client.handle(client._wait_for(lambda c: c._submit(request)), result_type)


def submit_many_sync(requests: list[Request | Rejected], result_type: Any) -> list[Any]:
    """Do what `submit_many` does, blocking."""
    client = current_client()
    valid = [each for each in requests if isinstance(each, Request)]
    answers = iter(client._wait_for(lambda c: c._submit_all(valid)))
    in_order = [next(answers) if isinstance(each, Request) else each for each in requests]
    return [client.handle(a, result_type) if isinstance(a, Submitted) else a for a in in_order]


def _async_handle(client: AsyncClient | Client, submitted: Submitted, result_type: Any) -> AsyncHandle[Any]:
    return AsyncHandle(
        id=submitted.execution_id, submitted=submitted, result_type=result_type, perform=client._perform
    )
