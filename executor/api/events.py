"""`GET /events`: changes as server-sent events, for the dashboard and other clients.

In: a stream, optionally with executions to watch and the id of the last received event. Out: batches of
events of the dashboard's poller, and comments in between so that proxies keep the connection open. A client
that does not keep up is dropped: it reconnects with `Last-Event-ID`, or reloads. A stream ends with the
token that requested it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final

from fastapi import Header, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.types import Message, Receive, Scope, Send

from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.api.auth import token_of
from turnstile.executor.api.bodies import StrictModel
from turnstile.executor.api.ends import until_gone
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes
from turnstile.executor.dashboard.events import HEARTBEAT
from turnstile.executor.dashboard.live import Live, Stream

logger = logging.getLogger(__name__)
_DROPPED: Final = Episodes(logger, "event_stream_dropped", level=logging.INFO)

_HEARTBEAT_SECONDS: Final = 15.0
_SEND_TIMEOUT_SECONDS: Final = 10.0
_DURATION_SECONDS: Final = 600.0
"""Then the client reconnects, with a token that is still valid."""


class StreamParameters(StrictModel):
    """The parameters of a stream."""

    execution_id: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(
        default=[], max_length=20, description="Executions whose changes are sent too; repeat it for several."
    )


class EventStream(Response):
    """A response that ends when the client leaves or does not keep up, the service stops, or time is over."""

    media_type = "text/event-stream"

    def __init__(
        self,
        live: Live,
        query: StreamParameters,
        *,
        last_event_id: str | None,
        stopping: asyncio.Event,
        refused: Callable[[], Awaitable[object]],
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
        duration_seconds: float = _DURATION_SECONDS,
    ) -> None:
        """`refused` returns when the client's token is not accepted any more."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._live = live
        self._query = query
        self._last_event_id = last_event_id
        self._stopping = stopping
        self._refused = refused
        self._heartbeat_seconds = heartbeat_seconds
        self._duration_seconds = duration_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until one of these ends it."""
        with self._live.stream(self._query.execution_id, last_event_id=self._last_event_id) as stream:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            ends = [
                asyncio.create_task(until_gone(receive), name="client gone"),
                asyncio.create_task(self._stopping.wait(), name="service stops"),
                asyncio.create_task(stream.dropped.wait(), name="client dropped"),
                asyncio.ensure_future(self._refused()),
                asyncio.create_task(self._send_all(stream, send), name="events"),
            ]
            try:
                await asyncio.wait(ends, timeout=self._duration_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
            if stream.dropped.is_set():
                _DROPPED.failed("streams")
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, stream: Stream, send: Send) -> None:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    batch = await stream.batches.get()
            except TimeoutError:
                batch = HEARTBEAT
            message: Message = {"type": "http.response.body", "body": batch, "more_body": True}
            try:
                async with asyncio.timeout(_SEND_TIMEOUT_SECONDS):
                    await send(message)
            except TimeoutError:
                stream.dropped.set()
                return


routes = ApiRoutes(tag="operation")


@routes.get(
    "/events",
    summary="Stream changes as server-sent events",
    description="`overview`: totals; `queues`: those that changed since the last batch; `executions`: "
    "status and progress of watched ones; `opening`: load the current state. At most one batch a second. "
    "Comments keep the connection open. Send `Last-Event-ID` to continue where a stream ended.",
    response_class=Response,
    responses={
        200: {
            "description": "A stream of events.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def get_events(
    parts: Parts,
    request: Request,
    query: Annotated[StreamParameters, Query()],
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    return EventStream(
        parts.live,
        query,
        last_event_id=last_event_id,
        stopping=parts.stopping,
        refused=partial(parts.tokens.until_refused, token_of(request)),
    )
