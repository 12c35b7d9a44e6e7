"""`POST /executions/{id}/retry`: retries one execution, with its parameters or with others.

A retry is a new execution that names the ended one, which never changes. Other parameters are checked like
those of a submission; all other fields of the request are repeated.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from fastapi import Body, Header, Request, Response
from fastapi.openapi.models import Example
from pydantic import Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import document_text, read_traceparent
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import LIST_BYTES_MAX, InUtf8, JsonBody
from turnstile.executor.api.executions import (
    KNOWN_KEY,
    Acceptance,
    ExecutionPath,
    acceptance_of,
    may_be_urgent,
    set_created,
    unknown_execution,
)
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, Refused, documented
from turnstile.executor.inbox import refusal_of

_MASK: Final = "**********"
"""What pydantic writes in place of a secret."""


class RetryAcceptance(Acceptance):
    """The retry was accepted as a new execution."""

    retry_of: int = Field(description="The execution that it retries.", examples=[4700])


class RetryBody(JsonBody):
    """What differs from the ended execution; nothing repeats its request."""

    bytes_max: ClassVar[int] = LIST_BYTES_MAX
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="All parameters, in place of those of the ended execution, checked like those of a "
        f"submission; the mask of a secret (`{_MASK}`) is refused. Left out: the same, unchecked.",
        examples=[{"customer_id": 18}],
    )


_NOTHING: Final = RetryBody()
_EXAMPLES: Final[dict[str, Example]] = {
    "same": {"summary": "The same request again", "value": {}},
    "edited": {"summary": "With other parameters", "value": {"parameters": {"customer_id": 18}}},
}

routes = ApiRoutes(prefix="/executions", tag="executions")


@routes.post(
    "/{execution_id}/retry",
    summary="Retry an ended execution as a new one",
    description="Same action, parameters, concurrency key, priority, timeout, callback_url and metadata, "
    "under the action's present limits, behind the executions of this priority that wait. The ended "
    "execution does not change. With other `parameters` the concurrency key is their value at the action's "
    "pointer, if it has one.",
    status_code=202,
    responses={
        200: {"model": RetryAcceptance, "description": KNOWN_KEY},
        **documented(
            Code.NOT_FOUND,
            Code.NOT_TERMINAL,
            Code.UNKNOWN_ACTION,
            Code.TOO_LARGE,
            Code.INVALID_PARAMETERS,
            Code.IDEMPOTENCY_CONFLICT,
            Code.QUEUE_FULL,
        ),
    },
)
async def post_retry(
    *,
    parts: Parts,
    execution_id: ExecutionPath,
    request: Request,
    response: Response,
    caller: CurrentCaller,
    body: Annotated[RetryBody, Body(openapi_examples=_EXAMPLES)] = _NOTHING,
    idempotency_key: Annotated[
        InUtf8 | None,
        Header(min_length=1, max_length=512, description="The same key is the same new execution."),
    ] = None,
) -> RetryAcceptance:
    edited = None if body.parameters is None else _edited(body.parameters, parts.parameters_bytes_max)
    async with answer_deadline(adds_executions=True):
        (retried,) = await parts.inbox.retry(
            [(execution_id, idempotency_key)],
            read_traceparent(request.headers),
            caller,
            parameters=edited,
            may_be_urgent=may_be_urgent(request),
        )
    if retried.status is None:
        raise unknown_execution(execution_id)
    if retried.answer is None:
        detail = f"execution_id: {execution_id} is {retried.status}; wait until it ends, or cancel it first"
        raise Refused(Code.NOT_TERMINAL, detail, id=execution_id, execution_status=retried.status)
    if (refusal := refusal_of(retried.answer)) is not None:
        raise refusal
    shown = RetryAcceptance(**acceptance_of(retried.answer).model_dump(), retry_of=execution_id)
    set_created(shown, response)
    return shown


def _edited(parameters: Mapping[str, Any], bytes_max: int) -> bytes:
    """Return parameters as JSON text; raises Refusal, also where one is the mask of a secret."""
    text = document_text(parameters, "parameters", bytes_max)
    path = _masked(parameters, "parameters") if _MASK.encode() in text else None
    if path is not None:
        raise Refusal(
            Code.INVALID_PARAMETERS,
            f"{path}: {_MASK} is the mask of a secret, whose value is not stored; give the value, or a "
            "reference to it",
        )
    return text


def _masked(value: object, path: str) -> str | None:
    """Return the path of the first mask."""
    match value:
        case str():
            return path if value == _MASK else None
        case dict():
            parts = list(value.items())
        case list():
            parts = list(enumerate(value))
        case _:
            return None
    return next((found for name, each in parts if (found := _masked(each, f"{path}.{name}"))), None)
