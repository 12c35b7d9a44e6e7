"""`POST /executions/cancel` and `POST /executions/retry`: many executions at once, named by a filter.

In: a filter, a bound, and where to go on. Out: what was found and what became of each. Every one goes
through the same guarded statements as a single one; a call looks at and changes a bounded number, and its
cursor leads to the rest. Next: `executor.reading` finds them, `services` ends or asks for them again.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import TERMINAL, Status, is_terminal
from turnstile.common.requests import json_text, read_model, read_traceparent
from turnstile.executor.api.bodies import read_value
from turnstile.executor.api.bulk_shapes import (
    BulkCancelBody,
    BulkFilter,
    BulkItem,
    BulkOutcome,
    BulkRetryBody,
)
from turnstile.executor.api.header_text import InUtf8
from turnstile.executor.api.paging import cursor_of, ticket_of, tickets_of
from turnstile.executor.api.problems import documented, problem
from turnstile.executor.api.requested import requested_body
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.decisions import Accepted, Move, Rejected, Retried
from turnstile.executor.reading import ExecutionFilter, Match, Matches, Reader

_RETRIED_AT_ONCE: Final = 100
_CANCEL_CURSOR: Final = "bulk-cancel"
_RETRY_CURSOR: Final = "bulk-retry"
_UNSUCCESSFUL: Final = (Status.FAILED, Status.TIMEOUT, Status.EXPIRED, Status.ABANDONED)
"""What a retry means where its filter names no status."""


def add_bulk_routes(routes: APIRouter, services: ApiServices, reader: Reader) -> None:
    """Add the routes to those of executions."""
    refusals = documented(Code.UNKNOWN_FIELD, Code.UNKNOWN_ACTION, Code.TOO_LARGE)

    @routes.post(
        "/cancel",
        summary="Cancel all that a filter names, at most 1000 in a call",
        description="Newest first, so that the heads of the lines do not start meanwhile. A repeated call is "
        "harmless.",
        status_code=202,
        responses=refusals,
        openapi_extra=requested_body("BulkCancelBody"),
        response_model=BulkOutcome,
    )
    async def post_bulk_cancel(request: Request) -> Any:
        asked = read_model(BulkCancelBody, await read_value(request))
        wanted = _wanted(asked.filter, "cancel", frozenset(Status) - TERMINAL)
        before_id = ticket_of(_CANCEL_CURSOR, asked.cursor)
        async with answer_deadline():
            found = await reader.live_matches(wanted, before_id=before_id, limit=asked.limit)
            _check_action(found, wanted)
            ids = [match.id for match in found.items]
            moves = [] if asked.dry_run or not ids else await services.cancel(ids, asked.reason)
        cursor = None if found.next_id is None else cursor_of(_CANCEL_CURSOR, found.next_id)
        return _after_cancel(found.items, moves, dry_run=asked.dry_run, cursor=cursor)

    @routes.post(
        "/retry",
        summary="Do all again that a filter names, at most 1000 in a call",
        description="Oldest first, so that they stand in line in their old order. With an `Idempotency-Key`, "
        "a call that is repeated after a lost answer asks for none of them twice, nor for what it made.",
        status_code=202,
        responses=refusals,
        openapi_extra=requested_body("BulkRetryBody"),
        response_model=BulkOutcome,
    )
    async def post_bulk_retry(
        request: Request,
        idempotency_key: Annotated[
            InUtf8 | None,
            Header(
                min_length=1,
                max_length=480,
                description="With it, the key of each new execution is `key/id`.",
            ),
        ] = None,
    ) -> Any:
        asked = read_model(BulkRetryBody, await read_value(request))
        wanted = _wanted(asked.filter, "retry", TERMINAL, default=_UNSUCCESSFUL)
        after_id, up_to_id = 0, None
        if asked.cursor is not None:
            after_id, up_to_id = tickets_of(_RETRY_CURSOR, asked.cursor, count=2)
        async with answer_deadline():
            found = await reader.ended_matches(
                wanted,
                after_id=after_id,
                up_to_id=up_to_id,
                limit=asked.limit,
                not_made_under=idempotency_key,
            )
            _check_action(found, wanted)
            items = () if asked.dry_run else found.items
            retried = await _retry_all(services, items, idempotency_key, read_traceparent(request.headers))
        cursor = None
        if found.next_id is not None and found.up_to_id is not None:
            cursor = cursor_of(_RETRY_CURSOR, found.next_id, found.up_to_id)
        return _after_retry(found.items, retried, dry_run=asked.dry_run, cursor=cursor)


def _wanted(
    asked: BulkFilter, verb: str, allowed: frozenset[Status], default: tuple[Status, ...] | None = None
) -> ExecutionFilter:
    if not asked.model_dump(exclude_defaults=True):
        fields = ", ".join(BulkFilter.model_fields)
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"filter: is empty and would mean every execution; name at least one of {fields}, "
            'like {"filter": {"action_ref": "reports.render"}}',
        )
    for status in asked.status or ():
        if status not in allowed:
            ended = "has not ended yet" if verb == "retry" else "has ended, which never changes"
            names = ", ".join(s for s in Status if s in allowed)
            raise Refusal(
                Code.INVALID_MESSAGE, f"filter.status: what is {status} {ended}; {verb} takes {names}"
            )
    return ExecutionFilter(
        action_ref=asked.action_ref,
        statuses=tuple(asked.status) if asked.status else default,
        concurrency_key=asked.concurrency_key,
        created_after=asked.created_after,
        created_before=asked.created_before,
        worker_id=asked.worker_id,
        metadata=tuple(
            (key, value if isinstance(value, str) else json_text(value))
            for key, value in asked.metadata.items()
        ),
    )


def _check_action(found: Matches, wanted: ExecutionFilter) -> None:
    if not found.action_is_known:
        raise Refusal(Code.UNKNOWN_ACTION, f"filter.action_ref: there is no action {wanted.action_ref!r}")


async def _retry_all(
    services: ApiServices, items: Sequence[Match], key: str | None, traceparent: str | None
) -> list[Retried]:
    retried: list[Retried] = []
    # A few at a time: their documents are copied, and each batch holds the locks of its lines.
    for start in range(0, len(items), _RETRIED_AT_ONCE):
        batch = items[start : start + _RETRIED_AT_ONCE]
        requests = [(match.id, None if key is None else f"{key}/{match.id}") for match in batch]
        retried += await services.retry(requests, traceparent)
    return retried


def _after_cancel(
    found: Sequence[Match], moves: Sequence[Move], *, dry_run: bool, cursor: str | None
) -> BulkOutcome:
    now = {move.execution_id: move.status for move in moves}
    return BulkOutcome(
        dry_run=dry_run,
        matched=len(found),
        changed=sum(not is_terminal(move.previous_status) for move in moves),
        items=[BulkItem(id=match.id, status=now.get(match.id, match.status)) for match in found],
        next_cursor=cursor,
    )


def _after_retry(
    found: Sequence[Match], retried: Sequence[Retried], *, dry_run: bool, cursor: str | None
) -> BulkOutcome:
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
    return BulkOutcome(dry_run=dry_run, matched=len(found), changed=changed, items=items, next_cursor=cursor)
