"""`/livez`, `/readyz` and `/metrics` of a worker, on a port of its own.

In: what the worker knows of its servers and itself. Out: the same answers as the executor service gives, so
that one health check and one scrape fit both. Nothing here stops the worker: who is not ready still works off
what it holds.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from turnstile.common.http_server import HttpServer
from turnstile.common.telemetry.exposition import exposed
from turnstile.common.telemetry.loop_lag import LoopLag
from turnstile.worker.metrics import LINK_UP, LOOP_LAG, METER

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_SECONDS: Final = 5.0

Readiness = Callable[[], dict[str, str | None]]
"""Names each server we depend on, with None or why it cannot be reached."""


def health_app(readiness: Readiness) -> Starlette:
    """Return the three routes."""

    async def get_livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def get_readyz(_: Request) -> JSONResponse:
        parts = readiness()
        ill = "; ".join(f"{name}: {reason}" for name, reason in parts.items() if reason is not None)
        if not ill:
            return JSONResponse({"status": "ready", "parts": parts})
        return JSONResponse(
            {
                "type": "urn:turnstile:problem:unavailable",
                "title": "Unavailable",
                "status": 503,
                "detail": ill,
                "code": "unavailable",
                "parts": parts,
            },
            status_code=503,
            headers={"Retry-After": "1"},
            media_type="application/problem+json",
        )

    async def get_metrics(request: Request) -> Response:
        for server, trouble in readiness().items():
            LINK_UP.set(float(trouble is None), server)
        content, content_type = exposed(METER, request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return Starlette(
        routes=[
            Route("/livez", get_livez),
            Route("/readyz", get_readyz),
            Route("/metrics", get_metrics),
        ]
    )


async def serve_with_health(
    work: Coroutine[Any, Any, None], readiness: Readiness, listener: socket.socket
) -> None:
    """Answer on `listener`, which is closed at the end, for as long as `work` takes."""
    config = uvicorn.Config(
        health_app(readiness),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    server = HttpServer(config)
    host, port = listener.getsockname()[:2]
    logger.info("health_serving", extra={"host": host, "port": port})
    loop_lag = LoopLag()
    LOOP_LAG.read_from(loop_lag.worst_seconds)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(loop_lag.run(), name="loop-lag")
        http = tasks.create_task(server.serve(sockets=[listener]), name="health")
        try:
            await work
        finally:
            looking.cancel()
            server.should_exit = True
            await asyncio.wait({http}, timeout=_STOP_TIMEOUT_SECONDS)
            http.cancel()
