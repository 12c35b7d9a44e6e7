"""Calls the HTTP API: reads and changes executions, actions and workers.

In: ids, filters, bodies. Out: typed values; `Rejected` for a problem document, `Unavailable` for anything
that another try may change. `NotReceived` is the `Unavailable` of a request that has certainly had no effect.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from turnstile.client.errors import NotReceived, Rejected, Unavailable
from turnstile.client.schemas import (
    Acceptance,
    BulkOutcome,
    Execution,
    ExecutionPage,
    LogPage,
    Problem,
    StoredAction,
    StoredKey,
    StoredResource,
    Submission,
    WorkerPage,
)
from turnstile.common.api_token import CA_FILE
from turnstile.common.domain.errors import Code
from turnstile.common.invalid_values import explained
from turnstile.common.schemas import History, QueueStats
from turnstile.common.urls import INVALID_API_URL, check_authority, is_api_url, is_loopback, with_tls_hint

_READ_TIMEOUT_SECONDS: Final = 10.0
_CHANGE_TIMEOUT_SECONDS: Final = 35.0
"""The API answers a change within 30 s, at the latest with 503."""
_STREAM_SILENCE_SECONDS: Final = 40.0
"""A stream of events sends a heartbeat every 15 s."""
_REQUESTS_MAX: Final = 8
_WAITING_MAX: Final = 16
"""Requests that wait at the API for ends, beside these."""
_WAIT_SECONDS: Final = 10.0
"""Short: a request that waits outlasts its caller, where that one stops to wait."""
_JSON: Final = {b"Content-Type": b"application/json"}
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

Shape = TypeVar("Shape", bound=BaseModel)
Query = Mapping[str, str | int | list[str] | None]


class _Answers(BaseModel):
    model_config = ConfigDict(frozen=True)

    items: list[Acceptance | Problem]


class _Cancelled(BaseModel):
    id: int


class _KeyDeleted(BaseModel):
    concurrency_key: str


class Api:
    """The HTTP API, as one client uses it."""

    def __init__(self, http_url: str, *, token: str | None, ca_file: str | None = None) -> None:
        """Raise ValueError if the URL or the file cannot be used."""
        if not is_api_url(http_url):
            raise ValueError(f"http_url: {INVALID_API_URL}")
        if ca_file:
            check_authority({"ca_file": ca_file}, "ca_file")
        self.url = http_url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
        self._http = self._connection()
        # Limited here: the cost of the library's own queue grows with its length.
        self._slots = asyncio.Semaphore(_REQUESTS_MAX)
        self._waiting = asyncio.Semaphore(_WAITING_MAX)
        self._running: set[asyncio.Task[httpx.Response]] = set()

    def _connection(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=self._verify,
            base_url=f"{self.url}/api/v1",
            headers=self._headers,
            timeout=_READ_TIMEOUT_SECONDS,
            # HTTP_PROXY does not apply to loopback.
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),
        )

    async def close(self) -> None:
        """Close the connections."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._http.aclose()

    async def execution(self, execution_id: int, *, may_wait: bool = False) -> Execution:
        """Return one execution with its position, the reason it waits for and its attempts.

        With `may_wait` once it has ended or some seconds are over, if few calls wait.
        """
        path = f"/executions/{execution_id:d}"
        if may_wait and not self._waiting.locked():
            timeout_seconds = _WAIT_SECONDS + _READ_TIMEOUT_SECONDS
            query = {"wait": f"{_WAIT_SECONDS:g}s"}
            request = self._http.build_request("GET", path, params=query, timeout=timeout_seconds)
            # Where too many wait in the executor, it still answers those that do not.
            with suppress(Unavailable):
                return await self._call(request, Execution, self._waiting)
        return await self._get(path, Execution)

    async def submission(self, request_id: UUID) -> Submission:
        """Return what became of a request of a database transaction."""
        return await self._get(f"/submissions/{request_id}", Submission)

    async def executions(self, filters: Query) -> ExecutionPage:
        """Return one page of executions, newest first; a filter with None is left out."""
        return await self._get("/executions", ExecutionPage, filters)

    async def logs(self, execution_id: int, query: Query) -> LogPage:
        """Return pieces of the logs of an execution."""
        return await self._get(f"/executions/{execution_id:d}/logs", LogPage, query)

    async def submit(
        self, bodies: Sequence[bytes], *, traceparent: str | None, timeout_seconds: float
    ) -> list[Acceptance | Problem]:
        """Submit a list of requests, each as JSON; return the answer to each, in order."""
        headers = {} if traceparent is None else {b"traceparent": traceparent.encode()}
        body = b"[" + b",".join(bodies) + b"]"
        answers = await self._change(
            "POST", "/executions", _Answers, body, headers=headers, timeout_seconds=timeout_seconds
        )
        if len(answers.items) != len(bodies):
            raise Unavailable(f"{self.url}: {len(answers.items)} answers to {len(bodies)} requests")
        return answers.items

    async def cancel(self, execution_id: int, reason: str | None) -> None:
        """Cancel an execution; one that has ended stays as it is."""
        body = {} if reason is None else {"reason": reason}
        try:
            await self._change("POST", f"/executions/{execution_id:d}/cancel", _Cancelled, to_json(body))
        except Rejected as rejected:
            if rejected.code != Code.ALREADY_TERMINAL:
                raise

    async def retry(self, execution_id: int, body: bytes, idempotency_key: str | None) -> Acceptance:
        """Retry an ended execution as a new one."""
        path = f"/executions/{execution_id:d}/retry"
        return await self._change("POST", path, Acceptance, body, headers=_keyed(idempotency_key))

    async def change_many(
        self, verb: str, body: Mapping[str, object], idempotency_key: str | None = None
    ) -> BulkOutcome:
        """Cancel or retry many executions."""
        path, headers = f"/executions/{verb}", _keyed(idempotency_key)
        return await self._change("POST", path, BulkOutcome, to_json(body), headers=headers)

    async def action(self, action_ref: str) -> StoredAction:
        """Return an action."""
        return await self._get(_action_path(action_ref), StoredAction)

    async def change_action(self, action_ref: str, fields: Mapping[str, object]) -> StoredAction:
        """Change some fields of an action."""
        return await self._change("PATCH", _action_path(action_ref), StoredAction, to_json(fields))

    async def switch_action(self, action_ref: str, verb: str) -> StoredAction:
        """Pause or resume an action."""
        return await self._change("POST", f"{_action_path(action_ref)}/{verb}", StoredAction, b"")

    async def set_key(self, action_ref: str, key: str, fields: Mapping[str, object]) -> StoredKey:
        """Give a concurrency key settings of its own."""
        return await self._change("PUT", _key_path(action_ref, key), StoredKey, to_json(fields))

    async def reset_key(self, action_ref: str, key: str) -> None:
        """Delete the settings of a concurrency key."""
        await self._change("DELETE", _key_path(action_ref, key), _KeyDeleted, b"")

    async def resource(self, name: str) -> StoredResource:
        """Return a resource."""
        return await self._get(f"/resources/{quote(name, safe='')}", StoredResource)

    async def change_resource(self, name: str, fields: Mapping[str, object]) -> StoredResource:
        """Change some fields of a resource."""
        return await self._change(
            "PATCH", f"/resources/{quote(name, safe='')}", StoredResource, to_json(fields)
        )

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Return the state of the queues of an action."""
        return await self._get(f"{_action_path(action_ref)}/queue-stats", QueueStats)

    async def history(self, query: Query) -> History:
        """Return what executions did over time."""
        return await self._get("/history", History, query)

    async def workers(self, query: Query) -> WorkerPage:
        """Return one page of workers, the newest first."""
        return await self._get("/workers", WorkerPage, query)

    @asynccontextmanager
    async def events(self, execution_id: int) -> AsyncIterator[AsyncIterator[str]]:
        """Open the stream of events about an execution; yields its lines. Raises Unavailable, Rejected."""
        # A connection of its own: a stream that is cancelled while it connects must not occupy the pool.
        async with self._connection() as http:
            request = http.stream(
                "GET", "/events", params={"execution_id": execution_id}, timeout=_STREAM_SILENCE_SECONDS
            )
            try:
                async with request as response:
                    if not response.is_success:
                        await response.aread()
                        raise _error_of(response)
                    yield response.aiter_lines()
            except httpx.HTTPError as error:
                raise self._unavailable(error) from error

    async def _get(self, path: str, shape: type[Shape], query: Query | None = None) -> Shape:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return await self._call(self._http.build_request("GET", path, params=given), shape)

    async def _change(
        self,
        method: str,
        path: str,
        shape: type[Shape],
        body: bytes,
        *,
        headers: Mapping[bytes, bytes] | None = None,
        timeout_seconds: float = _CHANGE_TIMEOUT_SECONDS,
    ) -> Shape:
        request = self._http.build_request(
            method, path, content=body, headers={**_JSON, **(headers or {})}, timeout=timeout_seconds
        )
        return await self._call(request, shape)

    async def _call(
        self, request: httpx.Request, shape: type[Shape], slots: asyncio.Semaphore | None = None
    ) -> Shape:
        try:
            response = await self._response(request, slots or self._slots)
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        if not response.is_success:
            raise _error_of(response)
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as error:
            raise Unavailable(
                f"{response.url}: not a response of Turnstile; check TURNSTILE_API_URL: "
                f"{explained(error, whole='response')}"
            ) from error

    async def _response(self, request: httpx.Request, slots: asyncio.Semaphore) -> httpx.Response:
        """Send the request in a task of its own, which a cancelled caller does not cancel.

        A request cancelled while it connects occupies a connection of the pool for ever, and a
        hundred of those block the pool (httpcore 1.0).
        """
        await slots.acquire()
        task = asyncio.create_task(self._http.send(request), name="request")
        self._running.add(task)

        def finish(task: asyncio.Task[httpx.Response]) -> None:
            self._running.discard(task)
            slots.release()
            if not task.cancelled():
                task.exception()  # mark as retrieved: the caller may be gone

        task.add_done_callback(finish)
        return await asyncio.shield(task)

    def _unavailable(self, error: httpx.HTTPError) -> Unavailable:
        reason = with_tls_hint(str(error), authority=CA_FILE) or type(error).__name__
        if isinstance(error, _NOT_SENT):
            return NotReceived(
                f"{self.url}: the API cannot be reached: {reason}; start it with 'executor serve', or set "
                "its URL: TURNSTILE_API_URL=http://host:port"
            )
        return Unavailable(f"{self.url}: the API did not answer: {reason}")


def _action_path(action_ref: str) -> str:
    return f"/actions/{quote(action_ref, safe='')}"


def _key_path(action_ref: str, key: str) -> str:
    return f"{_action_path(action_ref)}/keys/{quote(key, safe='')}"


def _keyed(idempotency_key: str | None) -> Mapping[bytes, bytes]:
    return {} if idempotency_key is None else {b"Idempotency-Key": idempotency_key.encode()}


def _error_of(response: httpx.Response) -> Rejected | Unavailable:
    try:
        problem = response.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        # The response of a proxy, or of another server.
        return Unavailable(
            f"{response.url}: HTTP {response.status_code}, not a response of Turnstile; check "
            "TURNSTILE_API_URL"
        )
    if response.is_server_error or code == Code.UNAVAILABLE:
        return Unavailable(f"{response.url}: {code}: {detail}")
    return Rejected(code, detail)
