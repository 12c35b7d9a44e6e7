"""Puts the API together: the gate, the routes, and one form for every error."""

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.messages import ExecutionRequested
from turnstile.executor.api import problems
from turnstile.executor.api.access import Gate
from turnstile.executor.api.actions import action_routes
from turnstile.executor.api.audit import audit_routes
from turnstile.executor.api.bulk_shapes import BulkCancelBody, BulkRetryBody
from turnstile.executor.api.dead_letters import DeadLetterReplay, DeadLetterSelection, dead_letter_routes
from turnstile.executor.api.events import event_routes
from turnstile.executor.api.executions import CancelBody, execution_routes
from turnstile.executor.api.health import health_routes
from turnstile.executor.api.logs import log_routes
from turnstile.executor.api.metrics import metrics_routes
from turnstile.executor.api.problems import Problem
from turnstile.executor.api.queues import queue_routes
from turnstile.executor.api.requested import describe
from turnstile.executor.api.retrying import RetryBody
from turnstile.executor.api.services import ApiServices
from turnstile.executor.api.webhooks import WebhookSelection, webhook_routes
from turnstile.executor.api.workers import worker_routes
from turnstile.executor.dashboard import Live, page_routes
from turnstile.executor.reading import Reader
from turnstile.executor.reading.audit import AuditBounds, Auditor
from turnstile.executor.reading.logs import LogReader
from turnstile.executor.reading.turns import ReadingTurns

PREFIX = "/api/v1"


def create_app(services: ApiServices) -> FastAPI:
    """Return the HTTP API over these services."""
    app = FastAPI(
        title="Turnstile",
        summary="Runs executions of actions in strict arrival order, never more at once than each allows.",
        version=_version(),
        redoc_url=None,
        # Left to itself it would send traces, logs and figures of its own once an OTEL_ variable is set.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    turns = ReadingTurns()
    reader = Reader(services.database, turns, services.readiness, services.degraded)
    app.include_router(execution_routes(services, reader), prefix=PREFIX)
    app.include_router(log_routes(LogReader(services.database, turns)), prefix=PREFIX)
    actions = action_routes(services, reader)
    app.include_router(actions, prefix=PREFIX)
    app.include_router(actions, include_in_schema=False)
    app.include_router(worker_routes(services, reader), prefix=PREFIX)
    auditor = Auditor(services.database, AuditBounds.of(services.settings))
    app.include_router(audit_routes(auditor), prefix=PREFIX)
    app.include_router(dead_letter_routes(services.dead_letters), prefix=PREFIX)
    app.include_router(webhook_routes(services.database, turns), prefix=PREFIX)
    live = Live(services.database, services.readiness)
    app.include_router(queue_routes(live), prefix=PREFIX)
    events = event_routes(live, services.stopping)
    app.include_router(events, prefix=PREFIX)
    app.include_router(events, include_in_schema=False)
    app.include_router(page_routes())
    health = health_routes(services)
    app.include_router(health)
    metrics = metrics_routes(services)
    app.include_router(metrics)
    app.include_router(metrics, prefix=PREFIX, include_in_schema=False)
    app.include_router(health, prefix=PREFIX, include_in_schema=False)
    app.add_middleware(Gate, bearers=services.settings.bearers(), own_hosts=services.settings.own_hosts())
    problems.install(app)
    describe(
        app,
        ExecutionRequested,
        ActionDefinition,
        CancelBody,
        RetryBody,
        BulkCancelBody,
        BulkRetryBody,
        DeadLetterReplay,
        DeadLetterSelection,
        WebhookSelection,
        Problem,
    )
    return app


def _version() -> str:
    try:
        return version("turnstile")
    except PackageNotFoundError:
        return "0"
