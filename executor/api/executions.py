"""The routes of executions: submit, list, read, cancel; `retrying` and `bulk` add theirs."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.instant import Instant
from turnstile.common.requests import read_json, read_model
from turnstile.executor.api.bodies import SMALL_BYTES_MAX, read_body
from turnstile.executor.api.bulk import add_bulk_routes
from turnstile.executor.api.paging import Page, Paging, cursor_of, ticket_of
from turnstile.executor.api.problems import Problem, answer, documented, problem
from turnstile.executor.api.requested import requested_body
from turnstile.executor.api.retrying import add_retry_route
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.api.submissions import (
    Acceptance,
    AcceptanceList,
    ExecutionPath,
    read_asked,
    submit,
    unknown_execution,
)
from turnstile.executor.reading import ExecutionFilter, ExecutionRecord, ExecutionShape, Reader

_CURSOR = "executions"
FilterText = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]

MetadataPair = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00:]+:[^\x00]*$")]


class ExecutionListing(Paging):
    """Which executions to list."""

    action_ref: FilterText | None = Field(default=None, examples=["reports.render"])
    status: list[Status] | None = Field(default=None, description="Any of these; repeat it for several.")
    concurrency_key: FilterText | None = None
    created_after: Instant | None = Field(default=None, description="This instant or later.")
    created_before: Instant | None = Field(default=None, description="Earlier than this instant.")
    worker_id: FilterText | None = Field(default=None, description="The worker of its latest attempt.")
    metadata: Annotated[list[MetadataPair], Field(max_length=20)] | None = Field(
        default=None,
        description="`key:value`: metadata with this key and value, as text. Repeat it: all must hold.",
        examples=["tenant:acme"],
    )


class CancelBody(BaseModel):
    """Why an execution is to stop."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None, examples=["no longer needed"]
    )


class Cancelled(BaseModel):
    """What a cancel did."""

    id: int = Field(examples=[4711])
    status: Status = Field(
        description="cancelled; or running: its worker was asked to stop it.", examples=["cancelled"]
    )


def execution_routes(services: ApiServices, reader: Reader) -> APIRouter:
    """Return the routes of executions."""
    routes = APIRouter(prefix="/executions", tags=["executions"])
    _add_submit_route(routes, services)
    _add_reading_routes(routes, reader)
    _add_cancel_route(routes, services)
    add_retry_route(routes, services)
    add_bulk_routes(routes, services, reader)
    return routes


def _add_submit_route(routes: APIRouter, services: ApiServices) -> None:
    parameters_bytes_max = services.settings.parameters_bytes_max
    turn = asyncio.Lock()

    @routes.post(
        "",
        summary="Submit one execution, or a list of at most 1000",
        status_code=202,
        responses={
            200: {"model": Acceptance, "description": "The key was known: the execution that it names"},
            **documented(
                Code.UNKNOWN_FIELD,
                Code.INVALID_PARAMETERS,
                Code.UNKNOWN_ACTION,
                Code.TOO_LARGE,
                Code.IDEMPOTENCY_CONFLICT,
                Code.QUEUE_FULL,
            ),
        },
        openapi_extra=requested_body("ExecutionRequested", or_list=True),
        response_model=Acceptance | AcceptanceList,
    )
    async def post_executions(
        request: Request,
        response: Response,
        idempotency_key: Annotated[
            str | None, Header(description="The same key is the same execution; for one, not for a list.")
        ] = None,
    ) -> Any:
        del idempotency_key  # read with the body, where a field of that name may stand
        asked = await read_asked(request, parameters_bytes_max=parameters_bytes_max, turn=turn)
        answers = await submit(services, asked.requests)
        if asked.is_list:
            return AcceptanceList(items=answers)
        match answers[0]:
            case Problem() as refused:
                return answer(refused)
            case Acceptance() as accepted:
                response.status_code = 200 if accepted.duplicate else 202
                response.headers["Location"] = f"/api/v1/executions/{accepted.id}"
                return accepted


def _add_reading_routes(routes: APIRouter, reader: Reader) -> None:
    @routes.get(
        "",
        summary="List executions, newest first",
        description="A page may be short, or empty, and still have a `next_cursor`: it looks at a bounded "
        "number of executions and carries a bounded number of bytes.",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_executions(asked: Annotated[ExecutionListing, Query()]) -> Page[ExecutionRecord]:
        wanted = ExecutionFilter(
            action_ref=asked.action_ref,
            statuses=tuple(asked.status) if asked.status else None,
            concurrency_key=asked.concurrency_key,
            created_after=asked.created_after,
            created_before=asked.created_before,
            worker_id=asked.worker_id,
            metadata=tuple(_pair(text) for text in asked.metadata or ()),
        )
        items, before_id = await reader.executions(
            wanted, before_id=ticket_of(_CURSOR, asked.cursor), limit=asked.limit
        )
        return Page(items=items, next_cursor=None if before_id is None else cursor_of(_CURSOR, before_id))

    @routes.get("/{execution_id}", summary="Read one execution", responses=documented(Code.NOT_FOUND))
    async def get_execution(execution_id: ExecutionPath) -> ExecutionShape:
        found = await reader.execution(ExecutionId(execution_id))
        if found is None:
            raise unknown_execution(execution_id)
        return found


def _add_cancel_route(routes: APIRouter, services: ApiServices) -> None:
    @routes.post(
        "/{execution_id}/cancel",
        summary="End what has not started; ask for the end of what runs",
        status_code=202,
        responses=documented(Code.NOT_FOUND, Code.ALREADY_TERMINAL, Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("CancelBody", required=False),
        response_model=Cancelled,
    )
    async def post_cancel(execution_id: ExecutionPath, request: Request) -> Any:
        body = await read_body(request, bytes_max=SMALL_BYTES_MAX)
        asked = read_model(CancelBody, read_json(body or b"{}", bytes_max=SMALL_BYTES_MAX))
        async with answer_deadline():
            moves = await services.cancel([ExecutionId(execution_id)], asked.reason)
        if not moves:
            raise unknown_execution(execution_id)
        move = moves[0]
        if is_terminal(move.previous_status):
            ended = f"execution {execution_id} is {move.status}; what has ended never changes"
            return answer(
                problem(Code.ALREADY_TERMINAL, ended, id=execution_id, execution_status=move.status)
            )
        return Cancelled(id=execution_id, status=move.status)


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition(":")
    return key, value
