"""Reads executions and queues over HTTP.

In: ids, filters, cursors. Out: typed values; `Rejected` for a problem document, `Unavailable` for anything
that another try may change. Fields that this version does not know are ignored, since newer executors may add
some. Durations are seconds, instants have a time zone.
"""

import asyncio
import ssl
from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from turnstile.client.errors import Rejected, Unavailable
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.fields import PRIORITY_DEFAULT
from turnstile.common.messages import Error
from turnstile.common.schemas import EstimatedStart, QueueStats, Schema

_TIMEOUT_SECONDS: Final = 10.0
_REQUESTS_MAX: Final = 8

Shape = TypeVar("Shape", bound=BaseModel)


class Attempt(Schema):
    """One attempt that a worker claimed."""

    attempt: int
    worker_id: str
    outcome: str | None = None
    """The terminal status, or retried, reclaimed, handed_back; None while it runs."""
    error: Error | None = None
    granted_at: datetime
    started_at: datetime
    ended_at: datetime | None = None


class WaitingOn(BaseModel):
    """Why an execution has not started; further fields depend on the reason (P10)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    reason: str
    """`limit`, `total`, `resource`, `rate`, `paused`, `no_worker`, `pool`, `not_due`, `unavailable` or
    `handing_over`."""


class GateStep(Schema):
    """One gate that an execution has passed, or where it waits: then `passed_at` is None."""

    gate: str
    """`queue`, `total`, `resource NAME` or `rate`."""
    units: int
    arrived_at: datetime | None = None
    passed_at: datetime | None = None


class Execution(Schema):
    """A stored execution. Lists leave out position, reason and attempts."""

    id: int
    action_ref: str
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    priority: int = PRIORITY_DEFAULT
    """1 is first, 5 is last."""
    status: Status
    attempt: int
    """Number of the latest grant; 0 before the first."""
    parameters: dict[str, JsonValue]
    result: JsonValue = None
    error: Error | None = None
    metadata: dict[str, JsonValue]
    worker_id: str | None = None
    created_at: datetime
    queued_at: datetime | None = None
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    position: int | None = None
    queue_length: int | None = None
    waiting_on: WaitingOn | None = None
    estimated_start: EstimatedStart | None = None
    attempts: tuple[Attempt, ...] = ()
    gates: tuple[GateStep, ...] = ()
    """Those of the latest attempt; empty if it has no gate after its queue."""


class ExecutionPage(Schema):
    """One page of a list, newest first; `next_cursor` is None at the end."""

    items: tuple[Execution, ...]
    next_cursor: str | None = None


class Api:
    """The reading part of the HTTP API."""

    def __init__(self, http_url: str, *, token: str | None, ca_file: str | None = None) -> None:
        self._http = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
            base_url=f"{http_url.rstrip('/')}/api/v1",
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_SECONDS,
        )
        # Limited here: the cost of the library's own queue grows with its length.
        self._slots = asyncio.Semaphore(_REQUESTS_MAX)
        self._running: set[asyncio.Task[httpx.Response]] = set()

    async def close(self) -> None:
        """Close the connections."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._http.aclose()

    async def execution(self, execution_id: int) -> Execution:
        """Return one execution with its position, the reason it waits for and its attempts."""
        return await self._get(f"/executions/{execution_id:d}", Execution)

    async def executions(self, filters: Mapping[str, str | int | list[str] | None]) -> ExecutionPage:
        """Return one page of executions, newest first; a filter with None is left out."""
        given = {name: value for name, value in filters.items() if value is not None}
        return await self._get("/executions", ExecutionPage, given)

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Return the state of the queues of an action."""
        return await self._get(f"/actions/{quote(action_ref, safe='')}/queue-stats", QueueStats)

    async def _get(
        self,
        path: str,
        shape: type[Shape],
        parameters: Mapping[str, str | int | list[str]] | None = None,
    ) -> Shape:
        try:
            response = await self._response(path, parameters)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._http.base_url}: {str(error) or type(error).__name__}") from error
        if not response.is_success:
            raise _error_of(response)
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as error:
            raise Unavailable(f"{response.url}: not a response of Turnstile: {error}") from error

    async def _response(
        self, path: str, parameters: Mapping[str, str | int | list[str]] | None
    ) -> httpx.Response:
        """Send the request in a task of its own, which a cancelled caller does not cancel.

        A request cancelled while it connects occupies a connection of the pool for ever, and a
        hundred of those block the pool (httpcore 1.0).
        """
        await self._slots.acquire()
        task = asyncio.create_task(self._http.get(path, params=parameters), name="read")
        self._running.add(task)
        task.add_done_callback(self._finish)
        return await asyncio.shield(task)

    def _finish(self, task: asyncio.Task[httpx.Response]) -> None:
        self._running.discard(task)
        self._slots.release()
        if not task.cancelled():
            task.exception()  # mark as retrieved: the caller may be gone


def _error_of(response: httpx.Response) -> Rejected | Unavailable:
    try:
        problem = response.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        # The response of a proxy, or of another server.
        return Unavailable(f"{response.url}: HTTP {response.status_code}")
    if response.is_server_error or code == Code.UNAVAILABLE:
        return Unavailable(f"{response.url}: {code}: {detail}")
    return Rejected(code, detail)
