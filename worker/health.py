"""`/livez`, `/readyz` and `/metrics` of a worker, on a port of its own.

In: the state of the worker and of its connections. Out: the same answers as the executor's, so that one
health check and one scrape configuration fit both. A worker that is not ready still finishes its attempts.
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

from turnstile.common.http import HttpServer
from turnstile.common.lifecycle import why_not_ready
from turnstile.common.telemetry.metrics import LoopLag, exposed
from turnstile.common.version import installed_version
from turnstile.worker.metrics import LOOP_LAG, METER, SERVER_UP

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_SECONDS: Final = 5.0

Readiness = Callable[[], dict[str, str | None]]
"""Maps each server to None, or to why it cannot be reached."""
Degraded = Callable[[], dict[str, str]]
"""Maps what does not work though the servers are reachable to why."""


def health_app(readiness: Readiness, degraded: Degraded = dict) -> Starlette:
    """Return the three routes."""
    version = installed_version()

    async def get_livez(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def get_readyz(_: Request) -> JSONResponse:
        parts = readiness()
        errors = why_not_ready(parts)
        if errors is None:
            faults = degraded()
            return JSONResponse(
                {"status": "ready", "version": version, "parts": parts}
                | ({"degraded": faults} if faults else {})
            )
        problem = {
            "type": "urn:turnstile:problem:unavailable",
            "title": "Unavailable",
            "status": 503,
            "detail": errors,
            "code": "unavailable",
            "parts": parts,
        }
        return JSONResponse(problem, 503, {"Retry-After": "1"}, media_type="application/problem+json")

    async def get_metrics(request: Request) -> Response:
        for server, error in readiness().items():
            SERVER_UP.set(float(error is None), server)
        content, content_type = exposed(METER, request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    endpoints = {"/livez": get_livez, "/readyz": get_readyz, "/metrics": get_metrics}
    return Starlette(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])


async def serve_with_health(
    work: Coroutine[Any, Any, None], readiness: Readiness, degraded: Degraded, listener: socket.socket
) -> None:
    """Run `work`, and answer on `listener` until it ends; then close `listener`."""
    config = uvicorn.Config(
        health_app(readiness, degraded),
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
        measuring = tasks.create_task(loop_lag.run(), name="loop-lag")
        http = tasks.create_task(server.serve(sockets=[listener]), name="health")
        try:
            await work
        finally:
            measuring.cancel()
            server.should_exit = True
            await asyncio.wait({http}, timeout=_STOP_TIMEOUT_SECONDS)
            http.cancel()
