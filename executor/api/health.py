"""`/livez`: the process answers. `/readyz`: the servers it needs can be reached, or which cannot and why."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from turnstile.common.domain.errors import Code
from turnstile.executor.api.problems import PROBLEM_JSON, answer, problem
from turnstile.executor.api.services import ApiServices


class Alive(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """Every part is well."""

    status: Literal["ready"] = "ready"
    parts: dict[str, str | None]
    degraded: dict[str, str] = {}
    """What does not work, like `pool gpu`, and why; the rest is served. Left out where all works."""


_NOT_READY: dict[str, Any] = {
    "description": "unavailable; `parts` says which and why",
    "content": {
        PROBLEM_JSON: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": problem(
                Code.UNAVAILABLE,
                "broker: connection refused",
                parts={"database": None, "broker": "connection refused"},
            ).model_dump(mode="json"),
        }
    },
}


def health_routes(services: ApiServices) -> APIRouter:
    """Return the routes that need no token."""
    routes = APIRouter(tags=["health"])

    @routes.get("/livez", summary="Does the process answer?")
    async def get_livez() -> Alive:
        return Alive()

    @routes.get(
        "/readyz",
        summary="Can it do its work?",
        responses={503: _NOT_READY},
        response_model=Ready,
        response_model_exclude_unset=True,
    )
    async def get_readyz() -> Any:
        parts = services.readiness()
        ill = "; ".join(f"{name}: {reason}" for name, reason in parts.items() if reason is not None)
        if ill:
            return answer(problem(Code.UNAVAILABLE, ill, parts=parts))
        if degraded := services.degraded():
            return Ready(status="ready", parts=parts, degraded=degraded)
        return Ready(status="ready", parts=parts)

    return routes
