"""`POST /executions`: one or many requests in, an acceptance or a problem for each out, in order.

A request is read exactly like the body of `execution.requested`, and admitted by the same statement, so the
same key over HTTP and over the broker is the same execution.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Path, Request
from pydantic import BaseModel, Field

from turnstile.common.batcher import in_steps
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status
from turnstile.common.requests import read_json, read_request, read_traceparent, request_hash
from turnstile.executor.api.bodies import LIST_BYTES_MAX, read_body
from turnstile.executor.api.header_text import in_utf8
from turnstile.executor.api.problems import Problem, problem
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.decisions import Accepted, Admission, Rejected, Verdict
from turnstile.executor.metrics import REFUSED

LIST_MAX: Final = 1000
"""Most requests in one list."""
_ENVELOPE_BYTES_MAX: Final = 64 * 1024
"""What one request may hold besides parameters and metadata."""


ExecutionPath = Annotated[int, Path(ge=1, le=2**63 - 1, description="The execution's id.", examples=[4711])]


class Acceptance(BaseModel):
    """It is in the record."""

    id: int = Field(examples=[4711])
    status: Status = Field(examples=["queued"])
    position: int | None = Field(
        description="Place in line, from 1; null when it does not wait in line.", examples=[3]
    )
    duplicate: bool = Field(description="The key was known: this is the execution that it names.")


class AcceptanceList(BaseModel):
    """What became of each request of a list, in order."""

    items: list[Acceptance | Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asked for: each a request, or why it is none."""

    is_list: bool
    requests: Sequence[Admission | Refusal]


async def read_asked(request: Request, *, parameters_bytes_max: int, turn: asyncio.Lock) -> Asked:
    """Return the requests in a body; raises Refusal where the body as a whole is none.

    Lists take turns: while one is read it holds many times its size.
    """
    one_bytes_max = 2 * parameters_bytes_max + _ENVELOPE_BYTES_MAX
    list_bytes_max = max(LIST_BYTES_MAX, one_bytes_max)
    body = await read_body(request, bytes_max=list_bytes_max)
    is_list = body[:100].lstrip().startswith(b"[")
    async with turn if is_list else nullcontext():
        value = read_json(body, bytes_max=list_bytes_max if is_list else one_bytes_max)
        return await _asked_in(value, request, parameters_bytes_max)


async def _asked_in(value: Any, request: Request, parameters_bytes_max: int) -> Asked:
    key = _key_in(request)
    traceparent = read_traceparent(request.headers)
    if not isinstance(value, list):
        keyed = _with_key(value, key)
        return Asked(is_list=False, requests=[_admission(keyed, traceparent, parameters_bytes_max)])
    if key is not None:
        raise Refusal(
            Code.INVALID_MESSAGE,
            "header Idempotency-Key: names one execution, but the body is a list; "
            "put idempotency_key into each of its items",
        )
    if len(value) > LIST_MAX:
        raise Refusal(Code.TOO_LARGE, f"body: a list of {len(value)}, at most {LIST_MAX} are taken at once")
    requests = [_read_item(item, traceparent, parameters_bytes_max) async for item in in_steps(value)]
    return Asked(is_list=True, requests=requests)


def _key_in(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    try:
        return None if key is None else in_utf8(key)
    except ValueError as error:
        raise Refusal(Code.INVALID_MESSAGE, f"header Idempotency-Key: {error}") from None


async def submit(
    services: ApiServices, requests: Sequence[Admission | Refusal]
) -> list[Acceptance | Problem]:
    """Admit what can be admitted, and say for each what became of it."""
    admissions = [r for r in requests if isinstance(r, Admission)]
    verdicts: Sequence[Verdict] = ()
    if admissions:
        async with answer_deadline():
            verdicts = await services.submit(admissions)
    in_order = iter(verdicts)
    answers = [
        problem(r.code, r.message) if isinstance(r, Refusal) else _shown(next(in_order)) for r in requests
    ]
    for answer in answers:
        if isinstance(answer, Problem):
            REFUSED.add(answer.code)
    return answers


def unknown_execution(execution_id: int) -> Refusal:
    """Refuse a path that names no execution."""
    return Refusal(Code.NOT_FOUND, f"execution_id: there is no execution {execution_id}")


def _shown(verdict: Verdict) -> Acceptance | Problem:
    match verdict:
        case Accepted():
            return Acceptance(
                id=verdict.execution_id,
                status=verdict.status,
                position=verdict.position,
                duplicate=verdict.duplicate,
            )
        case Rejected():
            return problem(verdict.code, verdict.message)


def _with_key(value: Any, key: str | None) -> Any:
    if key is None or not isinstance(value, Mapping):
        return value
    if value.get("idempotency_key", key) != key:
        raise Refusal(
            Code.INVALID_MESSAGE,
            "idempotency_key: differs from the header Idempotency-Key; send one of them, or both the same",
        )
    return {**value, "idempotency_key": key}


def _read_item(value: Any, traceparent: str | None, parameters_bytes_max: int) -> Admission | Refusal:
    try:
        return _admission(value, traceparent, parameters_bytes_max)
    except Refusal as refusal:
        return refusal


def _admission(value: Any, traceparent: str | None, parameters_bytes_max: int) -> Admission:
    request = read_request(value, parameters_bytes_max=parameters_bytes_max)
    return Admission.of(request, request_hash(request), traceparent=traceparent)
