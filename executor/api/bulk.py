"""`POST /executions/cancel` and `POST /executions/retry`: many executions at once, by a filter or by ids.

In: a filter with a limit and a cursor, or ids. Out: the selected executions and the result for each; what is
left out, and why. Each goes through the same guarded statements as a single one. A call reads and changes a
bounded number; its cursor leads to the rest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from fastapi import APIRouter, Body, Header, Request
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field, model_validator

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import TERMINAL, Status, is_terminal
from turnstile.common.requests import json_text, read_traceparent
from turnstile.executor.api.auth import CallerScope, CurrentCaller
from turnstile.executor.api.bodies import InUtf8, JsonBody, JsonRoute
from turnstile.executor.api.executions import FilterFields, Reason
from turnstile.executor.api.paging import ID_MAX, cursor_id, cursor_ids, cursor_of, next_cursor
from turnstile.executor.api.problems import Problem, answer_deadline, documented, problem
from turnstile.executor.callers import Caller
from turnstile.executor.operations import Operations
from turnstile.executor.queries.reader import Match, Matches, Reader
from turnstile.executor.queries.statements import CANDIDATES_MAX, ExecutionFilter
from turnstile.executor.results import Accepted, Move, Rejected, Retried

BULK_MAX: Final = 1000
"""Most executions in one call."""
_RETRY_BATCH_MAX: Final = 100
_CANCEL_CURSOR: Final = "bulk-cancel"
_RETRY_CURSOR: Final = "bulk-retry"
_UNSUCCESSFUL: Final = (Status.FAILED, Status.TIMEOUT, Status.EXPIRED, Status.ABANDONED)
"""What a retry selects if its filter names no status."""
_EVERY: Final = ExecutionFilter()
_REFUSALS: Final = documented(Code.UNKNOWN_FIELD, Code.UNKNOWN_ACTION, Code.TOO_LARGE)


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


class LeftOut(BaseModel):
    """Executions that were named or match the other conditions, and are not changed."""

    status: Status | None = Field(description="Their status; null: there is no such execution.")
    count: int = Field(examples=[2])
    reason: str = Field(description="Why they are left out.", examples=["has not ended"])


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


def bulk_routes(operations: Operations, reader: Reader) -> APIRouter:
    """Return the routes for many executions."""
    routes = APIRouter(prefix="/executions", tags=["executions"], route_class=JsonRoute)
    _add_cancel_route(routes, operations, reader)
    _add_retry_route(routes, operations, reader)
    return routes


def _add_cancel_route(routes: APIRouter, operations: Operations, reader: Reader) -> None:
    @routes.post(
        "/cancel",
        summary=f"Cancel all executions that match a filter, at most {BULK_MAX} in a call",
        description="Newest first, so that the heads of the queues do not start meanwhile. Repeating a call "
        "is harmless.",
        status_code=202,
        responses=_REFUSALS,
    )
    async def post_bulk_cancel(
        body: Annotated[BulkCancelBody, Body(openapi_examples=_CANCEL_EXAMPLES)],
        caller: CurrentCaller,
        scope: CallerScope,
    ) -> BulkOutcome:
        async with answer_deadline():
            if body.ids is not None:
                selected = await _named(reader, body, _CANCEL, scope)
                matches, cursor = selected.matches[::-1], None
            else:
                selected = await _left_out(reader, body, _CANCEL, scope)
                before_id = cursor_id(_CANCEL_CURSOR, body.cursor, first=ID_MAX)
                found = await reader.unfinished(selected.wanted, before_id=before_id, limit=body.limit)
                _check_action(found, selected.wanted)
                matches, cursor = found.items, next_cursor(_CANCEL_CURSOR, found.next_id)
            ids = [match.id for match in matches]
            moves: list[Move] = []
            if ids and not body.dry_run:
                await _record(operations, "cancelled", body, len(ids), caller)
                moves = await operations.cancel(ids, body.reason, caller)
        return selected.outcome(_after_cancel(matches, moves), dry_run=body.dry_run, cursor=cursor)


def _add_retry_route(routes: APIRouter, operations: Operations, reader: Reader) -> None:
    @routes.post(
        "/retry",
        summary=f"Retry all executions that match a filter, at most {BULK_MAX} in a call",
        description="Oldest first, so that they are queued in their former order. With an `Idempotency-Key`, "
        "a call that is repeated after a lost answer retries nothing twice, nor its own results.",
        status_code=202,
        responses=_REFUSALS,
    )
    async def post_bulk_retry(
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
        async with answer_deadline():
            if body.ids is not None:
                selected = await _named(reader, body, _RETRY, scope)
                matches, cursor = selected.matches, None
            else:
                selected = await _left_out(reader, body, _RETRY, scope)
                matches, cursor = await _ended(reader, body, selected.wanted, idempotency_key)
            items = () if body.dry_run else matches
            if items:
                await _record(operations, "retried", body, len(items), caller)
            retried = await _retry_all(
                operations, items, idempotency_key, read_traceparent(request.headers), caller
            )
        return selected.outcome(_after_retry(matches, retried), dry_run=body.dry_run, cursor=cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verb:
    """Which executions an operation applies to."""

    name: str
    applies_to: frozenset[Status]
    by_default: frozenset[Status]
    """What a filter selects that names no status."""

    def reason(self, status: Status) -> str:
        """Return why executions of this status are left out."""
        if status not in self.applies_to:
            return "has ended" if is_terminal(status) else "has not ended"
        return f"not selected: {self.name} these by their status, {status}"


_CANCEL: Final = _Verb(
    name="cancel", applies_to=frozenset(Status) - TERMINAL, by_default=frozenset(Status) - TERMINAL
)
_RETRY: Final = _Verb(name="retry", applies_to=TERMINAL, by_default=frozenset(_UNSUCCESSFUL))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selected:
    """What a call selects, and what it leaves out."""

    wanted: ExecutionFilter = _EVERY
    matches: Sequence[Match] = ()
    """Of `ids`; a filter is read page by page."""
    left_out: Sequence[LeftOut] = ()
    is_partial: bool = False

    def outcome(
        self, done: tuple[Sequence[BulkItem], int], *, dry_run: bool, cursor: str | None
    ) -> BulkOutcome:
        """Return the result of the call; `done`: the items, and how many were changed."""
        items, changed = done
        return BulkOutcome(
            dry_run=dry_run,
            matched=len(items),
            changed=changed,
            by_status=dict(Counter(item.status for item in items).most_common()),
            items=list(items),
            left_out=list(self.left_out),
            left_out_is_partial=self.is_partial,
            next_cursor=cursor,
        )


async def _named(reader: Reader, body: _BulkBody, verb: _Verb, scope: tuple[str, ...] | None) -> _Selected:
    assert body.ids is not None
    if body.filter is not None or body.cursor is not None:
        raise Refusal(Code.INVALID_MESSAGE, "ids: give either ids or a filter; ids have no cursor")
    ids = frozenset(map(ExecutionId, body.ids))
    found = await reader.named(sorted(ids), scope)
    apart = Counter(match.status for match in found if match.status not in verb.applies_to)
    left_out = [
        LeftOut(status=status, count=count, reason=verb.reason(status))
        for status, count in apart.most_common()
    ]
    if len(found) < len(ids):
        left_out.append(LeftOut(status=None, count=len(ids) - len(found), reason="no such execution"))
    return _Selected(matches=[match for match in found if match.status in verb.applies_to], left_out=left_out)


async def _left_out(reader: Reader, body: _BulkBody, verb: _Verb, scope: tuple[str, ...] | None) -> _Selected:
    if body.filter is None:
        raise Refusal(Code.INVALID_MESSAGE, 'filter: give a filter, or ids, like {"ids": [4711]}')
    given = frozenset(body.filter.status or Status)
    selected = given & (verb.applies_to if body.filter.status else verb.by_default)
    wanted = replace(_wanted(body.filter, verb, selected), scope=scope)
    others = [status for status in Status if status in given - selected]
    if not (body.dry_run and body.cursor is None and others):
        return _Selected(wanted=wanted)
    counts = await reader.counts(replace(wanted, statuses=tuple(others)))
    left_out = [
        LeftOut(status=status, count=count, reason=verb.reason(status))
        for status, count in sorted(counts.by_status.items(), key=lambda each: -each[1])
    ]
    return _Selected(wanted=wanted, left_out=left_out, is_partial=counts.is_cut)


async def _ended(
    reader: Reader, body: _BulkBody, wanted: ExecutionFilter, idempotency_key: str | None
) -> tuple[Sequence[Match], str | None]:
    """Return a page of ended executions, and the cursor of the next one."""
    after_id, up_to_id = 0, None
    if body.cursor is not None:
        after_id, up_to_id = cursor_ids(_RETRY_CURSOR, body.cursor, count=2)
    found = await reader.ended(
        wanted, after_id=after_id, up_to_id=up_to_id, limit=body.limit, not_made_under=idempotency_key
    )
    _check_action(found, wanted)
    if found.next_id is None or found.up_to_id is None:
        return found.items, None
    return found.items, cursor_of(_RETRY_CURSOR, found.next_id, found.up_to_id)


def _wanted(given: BulkFilter, verb: _Verb, selected: frozenset[Status]) -> ExecutionFilter:
    if not given.model_dump(exclude_defaults=True):
        fields = ", ".join(BulkFilter.model_fields)
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"filter: an empty filter would match every execution; give at least one of {fields}, "
            'like {"filter": {"action_ref": "reports.render"}}',
        )
    if not selected:
        names, expected = (
            ", ".join(status for status in Status if status in some)
            for some in (given.status or (), verb.applies_to)
        )
        raise Refusal(
            Code.INVALID_MESSAGE, f"filter.status: {verb.name} does not apply to {names}; expected {expected}"
        )
    metadata = (
        (key, value if isinstance(value, str) else json_text(value)) for key, value in given.metadata.items()
    )
    return given.filter_of([status for status in Status if status in selected], metadata)


def _check_action(found: Matches, wanted: ExecutionFilter) -> None:
    if not found.action_is_known:
        raise Refusal(Code.UNKNOWN_ACTION, f"filter.action_ref: there is no action {wanted.action_ref!r}")


async def _record(operations: Operations, verb: str, body: _BulkBody, matched: int, caller: Caller) -> None:
    """Record the request before the changes, which may take several transactions."""
    given = body.model_dump(mode="json", exclude={"dry_run", "limit", "cursor"}, exclude_defaults=True)
    action_ref = None if body.filter is None else body.filter.action_ref
    await operations.log_bulk(verb, action_ref, json_text({**given, "matched": matched}), caller)


async def _retry_all(
    operations: Operations,
    items: Sequence[Match],
    key: str | None,
    traceparent: str | None,
    caller: Caller,
) -> list[Retried]:
    retried: list[Retried] = []
    # In batches: each copies documents and holds the locks of its queues.
    for start in range(0, len(items), _RETRY_BATCH_MAX):
        batch = items[start : start + _RETRY_BATCH_MAX]
        requests = [(match.id, None if key is None else f"{key}/{match.id}") for match in batch]
        retried += await operations.retry(requests, traceparent, caller)
    return retried


def _after_cancel(found: Sequence[Match], moves: Sequence[Move]) -> tuple[list[BulkItem], int]:
    now = {move.execution_id: move.status for move in moves}
    items = [BulkItem(id=match.id, status=now.get(match.id, match.status)) for match in found]
    return items, sum(not is_terminal(move.previous_status) for move in moves)


def _after_retry(found: Sequence[Match], retried: Sequence[Retried]) -> tuple[list[BulkItem], int]:
    verdicts = {one.retry_of: one.verdict for one in retried}
    items, changed = [], 0
    for match in found:
        match verdicts.get(match.id):
            case Accepted() as accepted:
                changed += not accepted.duplicate
                items.append(BulkItem(id=match.id, status=match.status, retry_id=accepted.execution_id))
            case Rejected(code=code, message=message):
                items.append(BulkItem(id=match.id, status=match.status, problem=problem(code, message)))
            case None:
                items.append(BulkItem(id=match.id, status=match.status))
    return items, changed
