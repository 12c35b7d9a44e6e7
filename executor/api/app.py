"""Puts the API together: authentication, routes, and one form for every error."""

import asyncio

from fastapi import Depends, FastAPI

from turnstile.common.database import Database
from turnstile.common.version import installed_version
from turnstile.executor.api import problems
from turnstile.executor.api.actions import action_routes
from turnstile.executor.api.audit_log import audit_log_routes
from turnstile.executor.api.auth import TokenMiddleware
from turnstile.executor.api.bulk import bulk_routes
from turnstile.executor.api.dead_letters import dead_letter_routes
from turnstile.executor.api.events import event_routes
from turnstile.executor.api.executions import execution_routes, submission_routes
from turnstile.executor.api.keys import key_routes
from turnstile.executor.api.ops import audit_routes, document_routes, health_routes, metrics_routes
from turnstile.executor.api.pools import pool_routes
from turnstile.executor.api.problems import PREFIX, CheckedRouter, refuse_unknown_parameters
from turnstile.executor.api.queues import queue_routes
from turnstile.executor.api.resources import resource_routes
from turnstile.executor.api.tokens import identity_routes, token_routes
from turnstile.executor.api.webhooks import webhook_routes
from turnstile.executor.api.workers import worker_routes
from turnstile.executor.asking.asker import Asker
from turnstile.executor.dashboard.files import page_routes
from turnstile.executor.dashboard.live import Live
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.gauges import Gauges
from turnstile.executor.health import Health
from turnstile.executor.history.execution_reader import ExecutionReader
from turnstile.executor.history.executions import Executions
from turnstile.executor.inbox import Inbox
from turnstile.executor.queries.audit import Auditor
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.queue_reader import QueueReader
from turnstile.executor.queries.read_limiter import ReadLimiter
from turnstile.executor.queries.worker_reader import WorkerReader
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.stored_tokens import AcceptedTokens, TokenStore


def create_app(
    *,
    settings: ExecutorSettings,
    database: Database,
    inbox: Inbox,
    asker: Asker,
    dead_letters: DeadLetters,
    health: Health,
    stopping: asyncio.Event,
) -> FastAPI:
    """Return the HTTP API over these parts of the service; its streams end once `stopping` is set."""
    app = _app_without_routes()
    limiter = ReadLimiter()
    executions = Executions(database, limiter)
    definitions = DefinitionReader(database, limiter, asker)
    waiting = QueueReader(database, limiter, asker)
    workers = WorkerReader(database, limiter, asker, stop_timeout_seconds=settings.stop_timeout)
    live = Live(database, asker, health)
    actions = action_routes(inbox, definitions, waiting)
    keys = key_routes(inbox, definitions)
    store = TokenStore(database)
    tokens = AcceptedTokens(settings.accepted_tokens(), store, always_required=settings.is_exposed())
    events = event_routes(live, stopping, tokens)
    probes = health_routes(health)
    metrics = metrics_routes(Gauges(database, asker), health)
    checked = [Depends(refuse_unknown_parameters)]
    for routes in (
        execution_routes(
            inbox,
            executions,
            ExecutionReader(executions, asker, health, stop_timeout_seconds=settings.stop_timeout),
            parameters_bytes_max=settings.parameters_bytes_max,
        ),
        bulk_routes(inbox, executions),
        submission_routes(executions),
        actions,
        keys,
        resource_routes(inbox, definitions, waiting),
        pool_routes(inbox, definitions, waiting),
        worker_routes(inbox, workers),
        audit_routes(Auditor(database, asker)),
        audit_log_routes(definitions),
        token_routes(store),
        identity_routes(tokens, store),
        dead_letter_routes(dead_letters),
        webhook_routes(database, limiter),
        queue_routes(live),
        events,
    ):
        # The others are also there without the prefix.
        if isinstance(routes, CheckedRouter):
            app.router.routes.extend(routes.routes)
        else:
            app.include_router(routes, prefix=PREFIX, dependencies=checked)
    # Not checked: a service must not be restarted because of the address of its probe, and a proxy that signs
    # users in may add parameters to the address of a page.
    for routes in (page_routes(), probes):
        app.include_router(routes)
    for routes in (metrics, document_routes(app)):
        app.include_router(routes, dependencies=checked)
    for routes in (actions, keys, events):
        app.include_router(routes, dependencies=checked, include_in_schema=False)
    for routes in (probes, metrics):
        app.include_router(routes, prefix=PREFIX, dependencies=checked, include_in_schema=False)
    app.add_middleware(
        TokenMiddleware, tokens=tokens, own_hosts=settings.own_hosts(), action_of=executions.action_of
    )
    return app


def _app_without_routes() -> FastAPI:
    app = FastAPI(
        title="Turnstile",
        summary="Runs executions of actions in strict arrival order, within each action's concurrency limit.",
        version=installed_version(),
        # The dashboard's files have a page for the OpenAPI document that loads nothing from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Its own route would ignore unknown parameters: `document_routes` has another.
        openapi_url=None,
        # By default the framework exports traces, logs and metrics of its own if an OTEL_ variable is set.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    return app
