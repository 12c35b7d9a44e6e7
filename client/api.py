"""Reads over HTTP: executions and queues, as the executor's API shows them.

In: ids, filters, cursors. Out: the shapes of `shapes`; `Rejected` for a problem document, `Unavailable` for
anything that another try may change. Next: `shapes`.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from turnstile.client.errors import Rejected, Unavailable
from turnstile.client.shapes import Execution, ExecutionPage, QueueStats
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status

_TIMEOUT_SECONDS: Final = 10.0
_READINGS_MAX: Final = 8

Shape = TypeVar("Shape", bound=BaseModel)


class Api:
    """The HTTP API, for reading."""

    def __init__(self, http_url: str, *, token: str | None, ca_file: str | None = None) -> None:
        self._http = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
            base_url=f"{http_url.rstrip('/')}/api/v1",
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_SECONDS,
        )
        # Turns are taken here: the library's own line costs more with each one who stands in it.
        self._turns = asyncio.Semaphore(_READINGS_MAX)
        self._under_way: set[asyncio.Task[httpx.Response]] = set()

    async def close(self) -> None:
        """Close the connections."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._http.aclose()

    async def execution(self, execution_id: int) -> Execution:
        """Return one execution with its place, its reason to wait and its attempts."""
        return await self._get(f"/executions/{execution_id:d}", Execution)

    async def executions(
        self,
        *,
        action_ref: str | None,
        status: Sequence[Status],
        concurrency_key: str | None,
        created_after: datetime | None,
        created_before: datetime | None,
        limit: int | None,
        cursor: str | None,
    ) -> ExecutionPage:
        """Return one page of executions, newest first."""
        asked = {
            "action_ref": action_ref,
            "status": [str(each) for each in status] or None,
            "concurrency_key": concurrency_key,
            "created_after": None if created_after is None else created_after.isoformat(),
            "created_before": None if created_before is None else created_before.isoformat(),
            "limit": limit,
            "cursor": cursor,
        }
        return await self._get(
            "/executions", ExecutionPage, {name: value for name, value in asked.items() if value is not None}
        )

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Return how the queues of an action stand."""
        return await self._get(f"/actions/{quote(action_ref, safe='')}/queue-stats", QueueStats)

    async def _get(
        self,
        path: str,
        shape: type[Shape],
        asked: Mapping[str, str | int | list[str]] | None = None,
    ) -> Shape:
        try:
            response = await self._answered(path, asked)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._http.base_url}: {str(error) or type(error).__name__}") from error
        if not response.is_success:
            raise _refusal(response)
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as error:
            raise Unavailable(f"{response.url}: not an answer of Turnstile: {error}") from error

    async def _answered(self, path: str, asked: Mapping[str, str | int | list[str]] | None) -> httpx.Response:
        """Ask in a task that outlives whoever gives up.

        A request cancelled while it connects keeps its place in the library's pool for good, and after
        a hundred of those nobody gets one (httpcore 1.0).
        """
        await self._turns.acquire()
        task = asyncio.create_task(self._http.get(path, params=asked), name="read")
        self._under_way.add(task)
        task.add_done_callback(self._end_turn)
        return await asyncio.shield(task)

    def _end_turn(self, task: asyncio.Task[httpx.Response]) -> None:
        self._under_way.discard(task)
        self._turns.release()
        if not task.cancelled():
            task.exception()  # seen, though nobody may be waiting for it


def _refusal(response: httpx.Response) -> Rejected | Unavailable:
    try:
        problem = response.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        # A proxy spoke, or another server altogether.
        return Unavailable(f"{response.url}: HTTP {response.status_code}")
    if response.is_server_error or code == Code.UNAVAILABLE:
        return Unavailable(f"{response.url}: {code}: {detail}")
    return Rejected(code, detail)
