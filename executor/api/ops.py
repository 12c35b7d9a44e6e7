"""The routes for operators and probes: audit, health, metrics; and the OpenAPI document."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from turnstile.common.domain.errors import Code
from turnstile.common.lifecycle import why_not_ready
from turnstile.common.telemetry.metrics import exposed
from turnstile.common.version import installed_version
from turnstile.executor.api.bodies import StrictModel
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import (
    PROBLEM_JSON,
    ApiRoutes,
    answer,
    problem,
    refuse_unknown_parameters,
)
from turnstile.executor.metrics import METER, SERVER_UP
from turnstile.executor.queries.audit import EXAMPLES_MAX, AuditReport


class AuditParameters(StrictModel):
    """What to check."""

    record: bool = Field(
        default=True, description="Also check the whole history; without it the cost follows what lives."
    )
    examples: int = Field(default=10, ge=0, le=EXAMPLES_MAX, description="Most examples of each fault.")


class Alive(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """All servers are reachable."""

    status: Literal["ready"] = "ready"
    version: str
    parts: dict[str, str | None]
    degraded: dict[str, str] = {}
    """What does not work, like `pool gpu`, and why; omitted if everything works."""


audit_routes = ApiRoutes(tag="operation")


@audit_routes.get(
    "/audit",
    summary="Run the audit: check all rows in one snapshot",
    description="A wrong row is a fault of Turnstile, or of a foreign write to its tables. Reads the "
    "whole history: a few seconds for a million executions. One audit at a time. The check `memory` is "
    "the leader's own comparison, once a minute.",
)
async def get_audit(parts: Parts, query: Annotated[AuditParameters, Query()]) -> AuditReport:
    return await parts.auditor.audit(record=query.record, examples_max=query.examples)


_NOT_READY: Final[dict[str, Any]] = {
    "description": "unavailable; `parts` says which server and why",
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


health_routes = APIRouter(tags=["health"])
"""They take any parameters: a service must not be restarted because of the address of its probe."""
_checked: Final = Depends(refuse_unknown_parameters)


@health_routes.get("/livez", summary="Liveness: the process answers")
async def get_livez() -> Alive:
    return Alive()


@health_routes.get(
    "/readyz",
    summary="Readiness: the servers are reachable",
    responses={503: _NOT_READY},
    response_model=Ready,
    response_model_exclude_unset=True,
)
async def get_readyz(parts: Parts) -> Any:
    servers = dict(parts.health.readiness())
    if (unreachable := why_not_ready(servers)) is not None:
        detail = f"{unreachable}; 'executor doctor' on the host of this executor checks the rest"
        return answer(problem(Code.UNAVAILABLE, detail, parts=servers))
    version = installed_version()
    if degraded := parts.health.degraded():
        return Ready(status="ready", version=version, parts=servers, degraded=dict(degraded))
    return Ready(status="ready", version=version, parts=servers)


@health_routes.get(
    "/metrics",
    dependencies=[_checked],
    summary="Metrics for Prometheus",
    description="In the text format that `Accept` names. docs/telemetry.md explains each metric.",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(parts: Parts, request: Request) -> Response:
    await parts.gauges.refresh()
    for server, trouble in parts.health.readiness().items():
        SERVER_UP.set(float(trouble is None), server)
    content, content_type = exposed(METER, request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type})


@health_routes.api_route(
    "/openapi.json", methods=["GET", "HEAD"], include_in_schema=False, dependencies=[_checked]
)
async def get_document(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())
