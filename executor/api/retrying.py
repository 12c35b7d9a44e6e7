"""`POST /executions/{id}/retry`: an ended execution in, a new one that does the same again out.

What has ended never changes (P3), so a retry is an execution of its own, with its own place in line.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.requests import read_json, read_model, read_traceparent
from turnstile.executor.api.bodies import SMALL_BYTES_MAX, read_body
from turnstile.executor.api.header_text import InUtf8
from turnstile.executor.api.problems import answer, documented, problem
from turnstile.executor.api.requested import requested_body
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.api.submissions import Acceptance, ExecutionPath, unknown_execution
from turnstile.executor.decisions import Accepted, Rejected

_KNOWN_KEY = "The key was known: the execution that it names"


class RetryBody(BaseModel):
    """Nothing can be said about a retry: it asks for what was asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RetryAcceptance(Acceptance):
    """The new execution is in the record."""

    retry_of: int = Field(description="The execution that it does again.", examples=[4700])


def add_retry_route(routes: APIRouter, services: ApiServices) -> None:
    """Add the route to those of executions."""

    @routes.post(
        "/{execution_id}/retry",
        summary="Do an ended execution again, as a new one",
        description="The same action, parameters, concurrency key, timeout, callback_url and metadata, under "
        "the action's present limits, at the tail of the line. The ended execution stays as it is.",
        status_code=202,
        responses={
            200: {"model": RetryAcceptance, "description": _KNOWN_KEY},
            **documented(
                Code.NOT_FOUND,
                Code.NOT_TERMINAL,
                Code.UNKNOWN_ACTION,
                Code.UNKNOWN_FIELD,
                Code.TOO_LARGE,
                Code.INVALID_PARAMETERS,
                Code.IDEMPOTENCY_CONFLICT,
                Code.QUEUE_FULL,
            ),
        },
        openapi_extra=requested_body("RetryBody", required=False),
        response_model=RetryAcceptance,
    )
    async def post_retry(
        execution_id: ExecutionPath,
        request: Request,
        response: Response,
        idempotency_key: Annotated[
            InUtf8 | None,
            Header(min_length=1, max_length=512, description="The same key is the same new execution."),
        ] = None,
    ) -> Any:
        body = await read_body(request, bytes_max=SMALL_BYTES_MAX)
        read_model(RetryBody, read_json(body or b"{}", bytes_max=SMALL_BYTES_MAX))
        async with answer_deadline():
            (retried,) = await services.retry(
                [(ExecutionId(execution_id), idempotency_key)], read_traceparent(request.headers)
            )
        if retried.previous_status is None:
            raise unknown_execution(execution_id)
        match retried.verdict:
            case None:
                status = retried.previous_status
                detail = f"execution_id: {execution_id} is {status}; wait for its end, or cancel it first"
                return answer(problem(Code.NOT_TERMINAL, detail, id=execution_id, execution_status=status))
            case Rejected(code=code, message=message):
                raise Refusal(code, message)
            case Accepted() as accepted:
                response.status_code = 200 if accepted.duplicate else 202
                response.headers["Location"] = f"/api/v1/executions/{accepted.execution_id}"
                return RetryAcceptance(
                    id=accepted.execution_id,
                    status=accepted.status,
                    position=accepted.position,
                    duplicate=accepted.duplicate,
                    retry_of=execution_id,
                )
