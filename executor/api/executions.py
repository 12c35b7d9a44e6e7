"""The routes of executions: submit, list, read, logs, cancel; `retry` and `bulk` have further ones.

A submitted request is read exactly like the body of `execution.requested`, and decided in the same turns, so
the same idempotency key over HTTP and over the broker is the same execution.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Body, Header, Path, Query, Request, Response
from msgspec import structs
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict
from pydantic_core import to_json

from turnstile.common.batcher import in_steps
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.fields import Duration, Instant, Priority, PriorityText
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import (
    read_json,
    read_request,
    read_traceparent,
    request_bytes_max,
)
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CallerScope, CurrentCaller, token_of
from turnstile.executor.api.bodies import (
    LIST_BYTES_MAX,
    InUtf8,
    JsonBody,
    StrictModel,
    read_body,
)
from turnstile.executor.api.ends import WAITS_MAX
from turnstile.executor.api.paging import (
    ID_MAX,
    Page,
    Paging,
    cursor_id,
    cursor_ids,
    cursor_of,
    invalid_cursor,
    next_cursor,
)
from turnstile.executor.api.parts import ApiParts, Parts, parts_of
from turnstile.executor.api.problems import ApiRoutes, Problem, Refused, documented, shown_refusal
from turnstile.executor.api_tokens import Role
from turnstile.executor.history.executions import LogPosition
from turnstile.executor.history.filters import CANDIDATES_MAX, ExecutionFilter
from turnstile.executor.inbox import Answer, Inbox, refusal_of
from turnstile.executor.leader.door import request_of
from turnstile.executor.leader.ports import Request as Submission
from turnstile.executor.queries.schemas import (
    ExecutionDetail,
    ExecutionRecord,
    GatedExecutionDetail,
    GatedExecutionRecord,
    LogEntry,
    SubmissionDetail,
)

_WAIT_SECONDS_MAX: Final = 60
LIST_MAX: Final = 1000
"""Maximum number of requests in one list."""
_PIECES_MAX: Final = 1000
_CURSORS: Final = {"newest": "executions", "oldest": "oldest executions"}
_LOG_CURSOR: Final = "logs"
KNOWN_KEY: Final = "The idempotency key is known: the execution that it names"

ExecutionPath = Annotated[int, Path(ge=1, le=ID_MAX, description="The execution's id.", examples=[4711])]
FilterText = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
MetadataPair = Annotated[str, StringConstraints(max_length=1024, pattern=r"^[^\x00:]+:[^\x00]*$")]
Reason = Annotated[str, StringConstraints(max_length=1000)]


class Acceptance(BaseModel):
    """The request was accepted."""

    id: int = Field(examples=[4711])
    status: Status = Field(examples=["queued"])
    position: int | None = Field(
        description="Position in the queue, from 1; null if it is not queued.", examples=[3]
    )
    duplicate: bool = Field(description="The idempotency key is known: this is the execution that it names.")


class AcceptanceList(BaseModel):
    """The result of each request of a list, in order."""

    items: list[Acceptance | Problem]


class CancelBody(JsonBody):
    """Why an execution is cancelled."""

    reason: Reason | None = Field(default=None, examples=["no longer needed"])


_NO_REASON: Final = CancelBody()


class Cancelled(BaseModel):
    """The result of a cancel."""

    id: int = Field(examples=[4711])
    status: Status = Field(
        description="cancelled; or running: its worker was requested to stop it.", examples=["cancelled"]
    )


class FilterFields(StrictModel):
    """The filter of a bulk operation: an execution is selected if it meets every condition."""

    action_ref: FilterText | None = Field(default=None, examples=["reports.render"])
    concurrency_key: FilterText | None = None
    priority: Priority | None = None
    created_after: Instant | None = Field(default=None, description="This instant or later.")
    created_before: Instant | None = Field(default=None, description="Earlier than this instant.")
    completed_after: Instant | None = Field(default=None, description="Ended at this instant or later.")
    completed_before: Instant | None = Field(default=None, description="Ended earlier than this instant.")
    worker_id: FilterText | None = Field(default=None, description="The worker of its latest attempt.")
    error: FilterText | None = Field(
        default=None,
        description="Text in its error, which reads `type: message`; upper and lower case are equal.",
        examples=["no such customer"],
    )

    def filter_of(
        self, statuses: Sequence[Status] | None, metadata: Iterable[tuple[str, str]]
    ) -> ExecutionFilter:
        """Return these conditions, with statuses and metadata, which lists and bodies write differently."""
        own = {name: getattr(self, name) for name in FilterFields.model_fields}
        return ExecutionFilter(
            **own, statuses=tuple(statuses) if statuses else None, metadata=tuple(metadata)
        )


class ExecutionListing(Paging, FilterFields):
    """Which executions to list; all conditions must hold."""

    order: Literal["newest", "oldest"] = Field(default="newest", description="Which come first.")
    idempotency_key: FilterText | None = Field(
        default=None, description="The execution that was submitted with this key."
    )
    priority: PriorityText | None = None
    status: list[Status] | None = Field(default=None, description="Any of these; repeat it for several.")
    metadata: Annotated[list[MetadataPair], Field(max_length=20)] | None = Field(
        default=None,
        description="`key:value`: metadata with this key and value, as text. Repeat it: all must hold.",
        examples=["tenant:acme"],
    )

    def filter(self) -> ExecutionFilter:
        """Return the conditions."""
        pairs = (pair.partition(":") for pair in self.metadata or ())
        found = self.filter_of(self.status, ((key, value) for key, _, value in pairs))
        return replace(found, idempotency_key=self.idempotency_key)


class ExecutionList(Page[GatedExecutionRecord | ExecutionRecord]):
    """A page of executions."""

    searched_until: AwareDatetime | None = Field(
        description=f"The page ends because it has read {CANDIDATES_MAX:,} executions, up to those created "
        "at this instant: further ones may match too, and `next_cursor` continues there. Null: not cut."
    )


class LogListing(StrictModel):
    """Which part of the logs to read."""

    attempt: int | None = Field(default=None, ge=1, lt=2**31, description="Only this attempt.")
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of the previous answer; absent: from the beginning."
    )
    after: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="The former name of `cursor`.", json_schema_extra={"deprecated": True}
    )
    limit: int = Field(default=200, ge=1, le=_PIECES_MAX, description="Most pieces in the answer.")


_LOGS_EXAMPLE: Final[JsonDict] = {
    "items": [
        {
            "attempt": 1,
            "at": "2026-11-21T07:30:01.250Z",
            "text": "2026-11-21T07:30:00.312Z INFO page 1 of 40\n",
        }
    ],
    "next_cursor": "bG9ncwoxCjQz",
    "ended": False,
}


class Logs(BaseModel):
    """Pieces of logs in order: attempt by attempt, as they were written."""

    model_config = ConfigDict(json_schema_extra={"examples": [_LOGS_EXAMPLE]})

    items: list[LogEntry]
    next_cursor: str | None = Field(
        description="Send it as `cursor` for what follows, at once or a second later; null once `ended`."
    )
    ended: bool = Field(description="Nothing follows: the execution, or the requested attempt, has ended.")


_ONE_EXAMPLE: Final = {
    "action_ref": "reports.render",
    "parameters": {"customer_id": 17},
    "idempotency_key": "invoice-2041",
}
_LIST_EXAMPLE: Final = [
    {"action_ref": "reports.render", "parameters": {"customer_id": 17}},
    {"action_ref": "reports.render", "parameters": {"customer_id": 18}, "ttl": "1h"},
]


_TRACEPARENT: Final = "traceparent"
_TRACED: Final = {
    "type": "string",
    "title": "Traceparent",
    "description": "W3C trace context of this execution; that of the request if it is left out.",
}


def _submit_body() -> dict[str, Any]:
    """Return the OpenAPI description of the body; it is read by hand: a wrong item must not harm others."""
    one = ExecutionRequested.model_json_schema(ref_template="#/components/schemas/{model}")
    # What else it refers to is described with the answers.
    one["properties"]["singleton"]["anyOf"][0] = one.pop("$defs")["Singleton"]
    item = {**one, "title": "ListedExecution", "properties": {**one["properties"], _TRACEPARENT: _TRACED}}
    content = {
        "schema": {"oneOf": [one, {"type": "array", "items": item, "maxItems": LIST_MAX}]},
        "examples": {
            "one": {"summary": "One execution", "value": _ONE_EXAMPLE},
            "list": {"summary": "Two executions, admitted in this order", "value": _LIST_EXAMPLE},
        },
    }
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


routes = ApiRoutes(prefix="/executions", tag="executions")


@routes.post(
    "",
    summary=f"Submit one execution, or a list of at most {LIST_MAX}",
    status_code=202,
    responses={
        200: {"model": Acceptance, "description": KNOWN_KEY},
        **documented(
            Code.INVALID_PARAMETERS,
            Code.UNKNOWN_ACTION,
            Code.TOO_LARGE,
            Code.IDEMPOTENCY_CONFLICT,
            Code.SINGLETON_EXISTS,
            Code.QUEUE_FULL,
        ),
    },
    openapi_extra=_submit_body(),
)
async def post_executions(
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        InUtf8 | None, Header(description="The same key is the same execution; not for a list.")
    ] = None,
) -> Acceptance | AcceptanceList:
    parts = parts_of(request)
    submitted = await _read_submitted(request, idempotency_key, parts)
    if not submitted.is_list:
        (one,) = submitted.requests
        return await submit_one(parts.inbox, one, response)
    answers = await _submit(parts.inbox, submitted.requests)
    return AcceptanceList(
        items=[shown_refusal(each) if isinstance(each, Refusal) else each for each in answers]
    )


async def submit_one(inbox: Inbox, request: Submission | Refusal, response: Response) -> Acceptance:
    """Have a request decided, and return the answer of its route. Raises Refusal and Unavailable."""
    (answer,) = await _submit(inbox, [request])
    if isinstance(answer, Refusal):
        raise answer
    set_created(answer, response)
    return answer


def set_created(accepted: Acceptance, response: Response) -> None:
    """Answer 202 and where the execution is; 200 if it was there before."""
    response.status_code = 200 if accepted.duplicate else 202
    response.headers["Location"] = f"/api/v1/executions/{accepted.id}"


@routes.get(
    "",
    summary="List executions, newest or oldest first",
    description="A page may be short, or empty, and still have a `next_cursor`: it reads a bounded "
    "number of executions, then `searched_until` says how far, and contains a bounded number of bytes. "
    "`action_ref`, and any of the statuses delayed, scheduled and running, are found by an index, and "
    "without `action_ref` queued too; other conditions are compared one execution after another. "
    "Executions that have ended have `gates`, if they passed more than their queue.",
    response_model=ExecutionList,
)
async def get_executions(
    parts: Parts,
    query: Annotated[ExecutionListing, Query()],
    scope: CallerScope,
) -> Response:
    wanted = replace(query.filter(), scope=scope)
    kind, is_oldest = _CURSORS[query.order], query.order == "oldest"
    next_id = cursor_id(kind, query.cursor, first=0 if is_oldest else ID_MAX)
    page = await parts.executions.listed(
        wanted,
        before_id=ID_MAX if is_oldest else next_id,
        after_id=next_id if is_oldest else None,
        limit=query.limit,
    )
    shown = {
        "items": page.items,
        "next_cursor": next_cursor(kind, page.next_id),
        "searched_until": page.searched_until,
    }
    return Response(to_json(shown, inf_nan_mode="null"), media_type="application/json")


@routes.get(
    "/{execution_id}",
    summary="Read an execution, now or when it has ended",
    description="With `wait` the answer comes when the execution has ended, or when this time is over. Look "
    "at its `status`, and repeat the request, without a pause, until it has ended. At most "
    f"{WAITS_MAX:,} requests wait in an executor; it answers 503 to more.",
    responses=documented(Code.NOT_FOUND),
)
async def get_execution(
    parts: Parts,
    request: Request,
    execution_id: ExecutionPath,
    wait: Annotated[
        Annotated[Duration, Field(le=_WAIT_SECONDS_MAX)] | None,
        Query(description=f"Longest wait for its end: `30s`, at most {_WAIT_SECONDS_MAX} s."),
    ] = None,
) -> GatedExecutionDetail | ExecutionDetail:
    found = await parts.execution_reader.execution(ExecutionId(execution_id))
    if wait and found is not None and not is_terminal(found.status):
        await parts.ends.wait(ExecutionId(execution_id), wait, request.receive)
        found = await parts.execution_reader.execution(ExecutionId(execution_id))
    if found is None:
        raise unknown_execution(execution_id)
    return found


@routes.get(
    "/{execution_id}/logs",
    summary="Read the logs of an execution, by attempt, also while it runs",
    description="About the last 64 KiB of each attempt are kept.",
    responses=documented(Code.NOT_FOUND),
)
async def get_logs(parts: Parts, execution_id: ExecutionPath, query: Annotated[LogListing, Query()]) -> Logs:
    after = _log_position(query.cursor or query.after)
    page = await parts.executions.logs(
        ExecutionId(execution_id), attempt=query.attempt, after=after, limit=query.limit
    )
    if page is None:
        raise unknown_execution(execution_id)
    read = page.position
    cursor = None if page.is_ended else cursor_of(_LOG_CURSOR, read.attempt, read.chars)
    return Logs(items=list(page.items), next_cursor=cursor, ended=page.is_ended)


@routes.post(
    "/{execution_id}/cancel",
    summary="Cancel an execution",
    description="Before its start it ends at once; later its worker is requested to stop it.",
    status_code=202,
    responses=documented(Code.NOT_FOUND, Code.ALREADY_TERMINAL, Code.TOO_LARGE),
)
async def post_cancel(
    parts: Parts,
    execution_id: ExecutionPath,
    caller: CurrentCaller,
    body: Annotated[
        CancelBody,
        Body(openapi_examples={"reason": {"value": {"reason": "no longer needed"}}}),
    ] = _NO_REASON,
) -> Cancelled:
    async with answer_deadline():
        moved = await parts.inbox.cancel([execution_id], body.reason, caller)
    if not moved:
        raise unknown_execution(execution_id)
    _, before, after = moved[0]
    if is_terminal(before):
        detail = f"execution {execution_id} is {after}; an ended execution never changes"
        raise Refused(Code.ALREADY_TERMINAL, detail, id=execution_id, execution_status=after)
    return Cancelled(id=execution_id, status=after)


def unknown_execution(execution_id: int) -> Refusal:
    """Return the refusal for an execution that does not exist."""
    return Refusal(Code.NOT_FOUND, f"execution_id: there is no execution {execution_id}")


def _log_position(cursor: str | None) -> LogPosition:
    if cursor is None:
        return LogPosition()
    attempt, chars = cursor_ids(_LOG_CURSOR, cursor, count=2)
    if not (attempt < 2**31 and chars < 2**62):
        raise invalid_cursor()
    return LogPosition(attempt=attempt, chars=chars)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submitted:
    """The requests of a body: each checked, or refused."""

    is_list: bool
    requests: Sequence[Submission | Refusal]


async def _read_submitted(request: Request, key: str | None, parts: ApiParts) -> _Submitted:
    """Return the requests in a body; raises Refusal where the body as a whole is invalid.

    Lists are read one at a time, because each takes many times its size in memory until it is read.
    """
    one_bytes_max = request_bytes_max(parts.parameters_bytes_max)
    list_bytes_max = max(LIST_BYTES_MAX, one_bytes_max)
    body = await read_body(request, bytes_max=list_bytes_max)
    is_list = body[:100].lstrip().startswith(b"[")
    async with parts.list_lock if is_list else nullcontext():
        value = read_json(body, bytes_max=list_bytes_max if is_list else one_bytes_max)
        read = _reader_for(request, parts.parameters_bytes_max)
        if not isinstance(value, list):
            return _Submitted(is_list=False, requests=[read(_with_key(value, key))])
        _check_list(value, key)
        requests = [_read_item(item, read) async for item in in_steps(value)]
        return _Submitted(is_list=True, requests=requests)


def _check_list(value: Sequence[Any], key: str | None) -> None:
    if key is not None:
        raise Refusal(
            Code.INVALID_MESSAGE,
            "header Idempotency-Key: names one execution, but the body is a list; "
            "put idempotency_key into each of its items",
        )
    if len(value) > LIST_MAX:
        raise Refusal(Code.TOO_LARGE, f"body: a list of {len(value)}, at most {LIST_MAX} are allowed")


def _with_key(value: Any, key: str | None) -> Any:
    if key is None or not isinstance(value, Mapping):
        return value
    if value.get("idempotency_key", key) != key:
        raise Refusal(
            Code.INVALID_MESSAGE,
            "idempotency_key: differs from the header Idempotency-Key; send one of them, or both the same",
        )
    return {**value, "idempotency_key": key}


def _read_item(value: Any, read: Callable[[Any], Submission]) -> Submission | Refusal:
    try:
        if not isinstance(value, dict) or _TRACEPARENT not in value:
            return read(value)
        # It is no part of the request: a repeat under the same key may have another one.
        traceparent = read_traceparent({_TRACEPARENT: value.pop(_TRACEPARENT)})
        if traceparent is None:
            raise Refusal(
                Code.INVALID_MESSAGE, f"{_TRACEPARENT}: not a W3C trace context; leave it out, or correct it"
            )
        return structs.replace(read(value), traceparent=traceparent)
    except Refusal as refusal:
        return refusal


def _reader_for(request: Request, parameters_bytes_max: int) -> Callable[[Any], Submission]:
    """Return what reads the executions that this caller submits."""
    traceparent = read_traceparent(request.headers)
    token, is_urgent = token_of(request), may_be_urgent(request)

    def read(value: Any) -> Submission:
        submitted = read_request(value, parameters_bytes_max=parameters_bytes_max)
        if token is not None and not token.may_use(submitted.action_ref):
            raise Refusal(
                Code.FORBIDDEN,
                f"action_ref: the token {token.name!r} is not for the action {submitted.action_ref!r}",
            )
        return request_of(submitted, traceparent=traceparent, may_be_urgent=is_urgent)

    return read


def may_be_urgent(request: Request) -> bool:
    """Return whether the `priority_min` of an action does not bind this caller."""
    token = token_of(request)
    return token is None or token.role >= Role.OPERATE


async def _submit(inbox: Inbox, requests: Sequence[Submission | Refusal]) -> list[Acceptance | Refusal]:
    """Have the checked requests decided in their order; return the result of each request."""
    checked = [each for each in requests if isinstance(each, Submission)]
    decided: Sequence[Answer] = ()
    if checked:
        async with answer_deadline(adds_executions=True):
            decided = await inbox.decide(checked)
    answers = iter([refusal_of(each) or acceptance_of(each) for each in decided])
    return [each if isinstance(each, Refusal) else next(answers) for each in requests]


def acceptance_of(accepted: Answer) -> Acceptance:
    """Return what the leader accepted."""
    return Acceptance(
        id=accepted["execution_id"],
        status=accepted["status"],
        position=accepted["position"],
        duplicate=accepted["duplicate"],
    )


submission_routes = ApiRoutes(prefix="/submissions", tag="executions")


@submission_routes.get(
    "/{request_id}",
    summary="Show the outcome of a submission in a transaction",
    description="`request_id` is what `turnstile.submit` returned, or the id in the answer of a request "
    "that is kept and not decided yet. A submission exists once its transaction is committed.",
    responses=documented(Code.NOT_FOUND),
)
async def get_submission(parts: Parts, request_id: UUID) -> SubmissionDetail:
    found = await parts.executions.submission(request_id)
    if found is None:
        raise Refusal(
            Code.NOT_FOUND,
            f"request_id: there is no committed submission {request_id}; its transaction is open or was "
            "rolled back, or retention deleted its execution",
        )
    return found
