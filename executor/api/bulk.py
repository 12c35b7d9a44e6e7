"""`POST /executions/cancel` and `POST /executions/retry`: many executions at once, by a filter or by ids.

In: a filter with a limit and a cursor, or ids. Out: the selected executions and the result for each; what is
left out, and why. Each is decided like a single one. A call reads and changes a bounded number; its cursor
leads to the rest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import Body, Header, Request
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field, model_validator

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.requests import json_text, read_traceparent
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CallerScope, CurrentCaller
from turnstile.executor.api.bodies import InUtf8, JsonBody
from turnstile.executor.api.executions import FilterFields, Reason
from turnstile.executor.api.paging import ID_MAX, cursor_id, cursor_ids, cursor_of, next_cursor
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, Problem, documented, shown_refusal
from turnstile.executor.callers import Caller
from turnstile.executor.history.bulk_selection import (
    CANCEL,
    RETRY,
    BulkVerb,
    LeftOut,
    Selected,
    select_ids,
    select_matching,
)
from turnstile.executor.history.executions import Executions, Match
from turnstile.executor.history.filters import CANDIDATES_MAX, ExecutionFilter
from turnstile.executor.inbox import Inbox, Retried, refusal_of

BULK_MAX: Final = 1000
"""Most executions in one call."""
_CANCEL_CURSOR: Final = "bulk-cancel"
_RETRY_CURSOR: Final = "bulk-retry"
_REFUSALS: Final = documented(Code.UNKNOWN_ACTION, Code.TOO_LARGE)


_Id = Annotated[int, Field(ge=1, le=ID_MAX)]


class BulkFilter(FilterFields):
    """Which executions to change: all conditions must hold, and at least one is required."""

    status: Annotated[list[Status], Field(min_length=1)] | None = Field(
        default=None,
        description="Any of these. Default: for cancel all that have not ended, for retry failed, timeout, "
        "expired and abandoned.",
    )
    metadata: dict[str, str | bool | int | float] = Field(
        default_factory=dict, description="Each of these keys has this value.", examples=[{"tenant": "acme"}]
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_null(cls, given: object) -> object:
        """Refuse null, which a client might send for a condition that it could not read."""
        empty = [name for name, value in given.items() if value is None] if isinstance(given, dict) else []
        if empty:
            raise ValueError(f"{', '.join(map(str, empty))}: null is no condition; omit the field")
        return given


class _BulkBody(JsonBody):
    filter: BulkFilter | None = Field(default=None, description="Either this or `ids`.")
    ids: Annotated[list[_Id], Field(min_length=1, max_length=BULK_MAX)] | None = Field(
        default=None, description="These executions.", examples=[[4711, 4712]]
    )
    dry_run: bool = Field(default=False, description="Only list the matching executions; change nothing.")
    limit: int = Field(
        default=BULK_MAX, ge=1, le=BULK_MAX, description="Most executions in this call, of a filter."
    )
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of the previous call, with the same filter."
    )


class BulkCancelBody(_BulkBody):
    """Which executions to cancel, and why."""

    reason: Reason | None = Field(default=None, examples=["no longer needed"])


class BulkRetryBody(_BulkBody):
    """Which ended executions to retry."""


class BulkItem(BaseModel):
    """One matching execution."""

    id: int = Field(examples=[4711])
    status: Status = Field(
        description="Its status now; running after a cancel: its worker was requested to stop it."
    )
    retry_id: int | None = Field(default=None, description="The new execution.")
    problem: Problem | None = Field(default=None, description="Why there is no new execution.")


class BulkOutcome(BaseModel):
    """The result of a call."""

    dry_run: bool
    matched: int = Field(description="Matching executions in this call.", examples=[1])
    changed: int = Field(
        description="Executions that this call ended, requested to stop, or retried.", examples=[1]
    )
    by_status: dict[Status, int] = Field(
        description="How many of the items have which status.", examples=[{"failed": 1}]
    )
    items: list[BulkItem]
    left_out: list[LeftOut] = Field(
        description="What is left out, and why: of `ids` in every call, of a filter in a dry run without "
        "cursor. Statuses that the filter does not name are not listed."
    )
    left_out_is_partial: bool = Field(
        description=f"Only the newest {CANDIDATES_MAX:,} executions were counted in `left_out`."
    )
    next_cursor: str | None = Field(
        description="There may be more, even if this call matched none: send it with the same filter. Null: "
        "this was the last page."
    )


_CANCEL_EXAMPLES: Final[dict[str, Example]] = {
    "dry": {
        "summary": "Which executions of a tenant would be cancelled?",
        "value": {
            "filter": {"action_ref": "reports.render", "metadata": {"tenant": "acme"}},
            "dry_run": True,
        },
    },
    "queued": {
        "summary": "Cancel what waits, with a reason",
        "value": {
            "filter": {"action_ref": "reports.render", "status": ["queued", "delayed"]},
            "reason": "no longer needed",
        },
    },
}
_RETRY_EXAMPLES: Final[dict[str, Example]] = {
    "night": {
        "summary": "Retry what failed in one night",
        "value": {
            "filter": {
                "action_ref": "reports.render",
                "status": ["failed", "timeout"],
                "created_after": "2026-11-20T22:00:00Z",
                "created_before": "2026-11-21T06:00:00Z",
            },
            "limit": 500,
        },
    },
    "ids": {"summary": "What would a retry of these do?", "value": {"ids": [4711, 4712], "dry_run": True}},
}


routes = ApiRoutes(prefix="/executions", tag="executions")


@routes.post(
    "/cancel",
    summary=f"Cancel all executions that match a filter, at most {BULK_MAX} in a call",
    description="Newest first, so that the heads of the queues do not start meanwhile. Repeating a call "
    "is harmless.",
    status_code=202,
    responses=_REFUSALS,
)
async def post_bulk_cancel(
    parts: Parts,
    body: Annotated[BulkCancelBody, Body(openapi_examples=_CANCEL_EXAMPLES)],
    caller: CurrentCaller,
    scope: CallerScope,
) -> BulkOutcome:
    async with answer_deadline():
        if body.ids is not None:
            selected = await _named(parts.executions, body, CANCEL, scope)
            matches, cursor = selected.matches[::-1], None
        else:
            selected = await _matching(parts.executions, body, CANCEL, scope)
            before_id = cursor_id(_CANCEL_CURSOR, body.cursor, first=ID_MAX)
            found = await parts.executions.unfinished(selected.wanted, before_id=before_id, limit=body.limit)
            matches, cursor = found.items, next_cursor(_CANCEL_CURSOR, found.next_id)
        ids = [match.id for match in matches]
        moved: list[tuple[int, Status, Status]] = []
        if ids and not body.dry_run:
            await _record(parts.inbox, "cancelled", body, len(ids), caller)
            moved = await parts.inbox.cancel(ids, body.reason, caller)
    return _outcome(selected, _after_cancel(matches, moved), dry_run=body.dry_run, cursor=cursor)


@routes.post(
    "/retry",
    summary=f"Retry all executions that match a filter, at most {BULK_MAX} in a call",
    description="Oldest first, so that they are queued in their former order. With an `Idempotency-Key`, "
    "a call that is repeated after a lost answer retries nothing twice, nor its own results.",
    status_code=202,
    responses=_REFUSALS,
)
async def post_bulk_retry(
    *,
    parts: Parts,
    request: Request,
    body: Annotated[BulkRetryBody, Body(openapi_examples=_RETRY_EXAMPLES)],
    caller: CurrentCaller,
    scope: CallerScope,
    idempotency_key: Annotated[
        InUtf8 | None,
        Header(
            min_length=1,
            max_length=480,
            description="Each new execution then has the key `key/id`.",
        ),
    ] = None,
) -> BulkOutcome:
    async with answer_deadline(adds_executions=True):
        if body.ids is not None:
            selected = await _named(parts.executions, body, RETRY, scope)
            matches, cursor = selected.matches, None
        else:
            selected = await _matching(parts.executions, body, RETRY, scope)
            matches, cursor = await _ended(parts.executions, body, selected.wanted, idempotency_key)
        items = () if body.dry_run else matches
        retried: list[Retried] = []
        if items:
            await _record(parts.inbox, "retried", body, len(items), caller)
            requests = [
                (match.id, None if idempotency_key is None else f"{idempotency_key}/{match.id}")
                for match in items
            ]
            retried = await parts.inbox.retry(requests, read_traceparent(request.headers), caller)
    return _outcome(selected, _after_retry(matches, retried), dry_run=body.dry_run, cursor=cursor)


def _outcome(
    selected: Selected, done: tuple[Sequence[BulkItem], int], *, dry_run: bool, cursor: str | None
) -> BulkOutcome:
    """Return the result of a call; `done`: the items, and how many were changed."""
    items, changed = done
    return BulkOutcome(
        dry_run=dry_run,
        matched=len(items),
        changed=changed,
        by_status=dict(Counter(item.status for item in items).most_common()),
        items=list(items),
        left_out=list(selected.left_out),
        left_out_is_partial=selected.is_partial,
        next_cursor=cursor,
    )


async def _named(
    executions: Executions, body: _BulkBody, verb: BulkVerb, scope: tuple[str, ...] | None
) -> Selected:
    assert body.ids is not None
    if body.filter is not None or body.cursor is not None:
        raise Refusal(Code.INVALID_MESSAGE, "ids: give either ids or a filter; ids have no cursor")
    return await select_ids(executions, body.ids, verb, scope)


async def _matching(
    executions: Executions, body: _BulkBody, verb: BulkVerb, scope: tuple[str, ...] | None
) -> Selected:
    if body.filter is None:
        raise Refusal(Code.INVALID_MESSAGE, 'filter: give a filter, or ids, like {"ids": [4711]}')
    _check_given(body.filter)
    selected, others = verb.split(body.filter.status)
    metadata = (
        (key, value if isinstance(value, str) else json_text(value))
        for key, value in body.filter.metadata.items()
    )
    wanted = replace(body.filter.filter_of(selected, metadata), scope=scope)
    if wanted.action_ref is not None and not await executions.has_action(wanted.action_ref):
        raise Refusal(Code.UNKNOWN_ACTION, f"filter.action_ref: there is no action {wanted.action_ref!r}")
    counted = others if body.dry_run and body.cursor is None else ()
    return await select_matching(executions, wanted, counted, verb)


async def _ended(
    executions: Executions, body: _BulkBody, wanted: ExecutionFilter, idempotency_key: str | None
) -> tuple[Sequence[Match], str | None]:
    """Return a page of ended executions, and the cursor of the next one."""
    after_id, up_to_id = 0, None
    if body.cursor is not None:
        after_id, up_to_id = cursor_ids(_RETRY_CURSOR, body.cursor, count=2)
    found = await executions.ended(
        wanted, after_id=after_id, up_to_id=up_to_id, limit=body.limit, not_made_under=idempotency_key
    )
    if found.next_id is None or found.up_to_id is None:
        return found.items, None
    return found.items, cursor_of(_RETRY_CURSOR, found.next_id, found.up_to_id)


def _check_given(given: BulkFilter) -> None:
    if not given.model_dump(exclude_defaults=True):
        fields = ", ".join(BulkFilter.model_fields)
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"filter: an empty filter would match every execution; give at least one of {fields}, "
            'like {"filter": {"action_ref": "reports.render"}}',
        )


async def _record(inbox: Inbox, verb: str, body: _BulkBody, matched: int, caller: Caller) -> None:
    """Record the request before the changes, which may take several turns."""
    given = body.model_dump(mode="json", exclude={"dry_run", "limit", "cursor"}, exclude_defaults=True)
    action_ref = None if body.filter is None else body.filter.action_ref
    await inbox.record_bulk(verb, action_ref, {**given, "matched": matched}, caller)


def _after_cancel(
    found: Sequence[Match], moved: Sequence[tuple[int, Status, Status]]
) -> tuple[list[BulkItem], int]:
    now = {execution_id: after for execution_id, _, after in moved}
    items = [BulkItem(id=match.id, status=now.get(match.id, match.status)) for match in found]
    return items, sum(not is_terminal(before) for _, before, _ in moved)


def _after_retry(found: Sequence[Match], retried: Sequence[Retried]) -> tuple[list[BulkItem], int]:
    answers = {each.retry_of: each.answer for each in retried}
    items, changed = [], 0
    for match in found:
        decided, retry_id, shown = answers.get(match.id), None, None
        if decided is not None and (refusal := refusal_of(decided)) is not None:
            shown = shown_refusal(refusal)
        elif decided is not None:
            retry_id = decided["execution_id"]
            changed += not decided["duplicate"]
        items.append(BulkItem(id=match.id, status=match.status, retry_id=retry_id, problem=shown))
    return items, changed
