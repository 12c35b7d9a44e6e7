"""Puts the API together: authentication, routes, and one form for every error."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.common.version import installed_version
from turnstile.executor.api import (
    actions,
    attention,
    audit_log,
    bulk,
    dead_letters,
    events,
    executions,
    gates,
    history,
    keys,
    ops,
    problems,
    queues,
    retry,
    schedules,
    tokens,
    webhooks,
    workers,
)
from turnstile.executor.api.auth import TokenMiddleware
from turnstile.executor.api.parts import ApiParts
from turnstile.executor.api.problems import PREFIX
from turnstile.executor.dashboard.files import page_routes
from turnstile.executor.settings import ExecutorSettings

_ROUTES: Final[Sequence[APIRouter]] = (
    executions.routes,
    retry.routes,
    bulk.routes,
    executions.submission_routes,
    actions.routes,
    keys.routes,
    gates.resource_routes,
    gates.pool_routes,
    schedules.routes,
    workers.routes,
    ops.audit_routes,
    audit_log.routes,
    tokens.routes,
    tokens.identity_routes,
    dead_letters.routes,
    webhooks.routes,
    queues.routes,
    attention.routes,
    history.routes,
    events.routes,
    page_routes(),
    ops.health_routes,
)
_PROBES_UNDER_PREFIX: Final = tuple(f"{PREFIX}/{name}" for name in ("livez", "readyz", "metrics"))


def create_app(settings: ExecutorSettings, parts: ApiParts) -> FastAPI:
    """Return the HTTP API over these parts of the service."""
    app = _app_without_routes()
    app.state.parts = parts
    for routes in _ROUTES:
        # `include_router` builds each route a second time, at the first request.
        app.router.routes.extend(routes.routes)
    app.add_middleware(
        TokenMiddleware,
        tokens=parts.tokens,
        own_hosts=settings.own_hosts(),
        action_of=parts.executions.action_of,
    )
    app.add_middleware(OtherAddresses)
    return app


class OtherAddresses:
    """ASGI middleware: actions and events are there without the prefix too, and probes under it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, under the address that its route has."""
        path = scope.get("path", "")
        if path == "/events" or f"{path}/".startswith("/actions/"):
            scope = {**scope, "path": PREFIX + path}
        elif path in _PROBES_UNDER_PREFIX:
            scope = {**scope, "path": path.removeprefix(PREFIX)}
        await self._app(scope, receive, send)


def _app_without_routes() -> FastAPI:
    app = FastAPI(
        title="Turnstile",
        summary="Runs executions of actions in strict arrival order, within each action's concurrency limit.",
        version=installed_version(),
        # The dashboard's files have a page for the OpenAPI document that loads nothing from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Its own route would ignore unknown parameters: `ops` has another.
        openapi_url=None,
        # By default the framework exports traces, logs and metrics of its own if an OTEL_ variable is set.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    return app
