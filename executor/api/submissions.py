"""The route of submissions in a transaction: what became of one."""

from uuid import UUID

from fastapi import APIRouter

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.api.problems import documented
from turnstile.executor.queries.reader import Reader
from turnstile.executor.queries.schemas import SubmissionDetail


def submission_routes(reader: Reader) -> APIRouter:
    """Return the route of submissions."""
    routes = APIRouter(prefix="/submissions", tags=["executions"])

    @routes.get(
        "/{request_id}",
        summary="What became of a submission in a transaction",
        description="`request_id` is what `turnstile.submit` returned. A submission exists once its "
        "transaction is committed.",
        responses=documented(Code.NOT_FOUND),
    )
    async def get_submission(request_id: UUID) -> SubmissionDetail:
        found = await reader.submission(request_id)
        if found is None:
            raise Refusal(
                Code.NOT_FOUND,
                f"request_id: there is no committed submission {request_id}; its transaction is open or was "
                "rolled back, or retention deleted its execution",
            )
        return found

    return routes
