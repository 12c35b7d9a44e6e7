"""`/metrics`: the figures of this process, and how the lines stand, for Prometheus and its like."""

from fastapi import APIRouter, Request, Response

from turnstile.common.telemetry.exposition import exposed
from turnstile.executor.api.services import ApiServices
from turnstile.executor.gauges import LineGauges
from turnstile.executor.metrics import LINK_UP, METER


def metrics_routes(services: ApiServices) -> APIRouter:
    """Return the one route."""
    routes = APIRouter(tags=["health"])
    gauges = LineGauges(services.database)

    @routes.get(
        "/metrics",
        summary="Figures for Prometheus",
        description="In the text format that `Accept` asks for. docs/telemetry.md explains each figure.",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def get_metrics(request: Request) -> Response:
        await gauges.refresh()
        for server, trouble in services.readiness().items():
            LINK_UP.set(float(trouble is None), server)
        content, content_type = exposed(METER, request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return routes
