"""The route of the audit: everything recounted, for operators."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from turnstile.common.domain.errors import Code
from turnstile.executor.api.problems import documented
from turnstile.executor.reading.audit import EXAMPLES_MAX, Auditor, AuditShape


class AuditAsked(BaseModel):
    """What to recount. No other parameters are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    record: bool = Field(
        default=True, description="Also what needs the whole record; without it the cost follows what lives."
    )
    examples: int = Field(default=10, ge=0, le=EXAMPLES_MAX, description="Most examples of each fault.")


def audit_routes(auditor: Auditor) -> APIRouter:
    """Return the route of the audit."""
    routes = APIRouter(prefix="/audit", tags=["operation"])

    @routes.get(
        "",
        summary="Recount everything, in one snapshot",
        description="A row that is wrong is a fault of Turnstile, or somebody wrote to its tables. Reads the "
        "whole record: a few seconds for a million executions. One at a time.",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_audit(asked: Annotated[AuditAsked, Query()]) -> AuditShape:
        return await auditor.audit(record=asked.record, examples_max=asked.examples)

    return routes
