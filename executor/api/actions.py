"""The routes of actions: define, change, pause, delete, and show their queues and changes.

A change is a command that the leader decides in a turn: merged, checked as a whole and under the conditions
of its request, and stored with who changed what.
"""

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code
from turnstile.common.fields import PRIORITIES, check_ref
from turnstile.common.schemas import QueueStats
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.bodies import DefinitionFields, JsonRoute, StrictModel
from turnstile.executor.api.conditions import TAGGED, ConditionalCaller, IfNoneMatch, is_unchanged
from turnstile.executor.api.definition_routes import CHANGED, SWITCHED, Definitions
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import (
    Page,
    Paging,
    cursor_ids,
    cursor_name,
    cursor_of,
    invalid_cursor,
    next_cursor,
)
from turnstile.executor.api.problems import answer, documented, problem
from turnstile.executor.inbox import Inbox
from turnstile.executor.leader.commands import unknown
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.queue_reader import QueueReader, QueueStart
from turnstile.executor.queries.schemas import ActionDetail, ActionQueuePage, ChangeEntry, StoredAction

DELETED_WITH_MAX: Final = 10_000
"""Most waiting executions that are cancelled with their action in one call."""
_CURSOR: Final = "actions"
_QUEUE_CURSOR: Final = "line"
RefPath = Annotated[str, Path(description="The action's name.", examples=["reports.render"])]


async def _possible_ref(ref: RefPath) -> str:
    try:
        return check_ref(ref)
    except ValueError:
        raise unknown("action", ref) from None


PossibleRef = Annotated[str, Depends(_possible_ref)]
"""The ref in a path; a name that no action can have is answered with 404."""


class ActionFields(DefinitionFields):
    """Fields of a definition. The path names the action."""

    definition = ActionDefinition


_FIELDS_EXAMPLES: Final[dict[str, Example]] = {
    "command": {
        "summary": "At most two concurrent runs",
        "value": {"runner": "command", "entrypoint": ["wc", "-w"], "max_concurrent": 2, "timeout": "5m"},
    },
    "limit": {"summary": "Only a limit", "value": {"max_concurrent": 5}},
    "gates": {
        "summary": "Two for each customer, 20 in all, two units of a shared resource for each",
        "value": {
            "concurrency_key": "/customer/id",
            "max_concurrent": 2,
            "max_concurrent_total": 20,
            "order": "fair",
            "rate": {"starts": 10, "per": "1s"},
            "uses": [{"resource": "autocad", "units": 2}, "partner-api"],
        },
    },
}
GivenFields = Annotated[ActionFields, Body(openapi_examples=_FIELDS_EXAMPLES)]


class QueueListing(Paging):
    """Which part of the queues of an action to list."""

    concurrency_key: FilterText | None = Field(default=None, description="Only the queue of this key.")


class DeletionParameters(StrictModel):
    """What happens to waiting executions."""

    waiting: Literal["refuse", "cancel"] = Field(
        default="refuse",
        description="refuse: an action with waiting executions is not deleted; cancel: they are cancelled.",
    )


class ActionDeleted(BaseModel):
    """The action was deleted; its executions stay in the history."""

    action_ref: str = Field(examples=["reports.render"])
    cancelled: int = Field(description="Waiting executions that were cancelled with it.")


def action_routes(inbox: Inbox, reader: DefinitionReader, queues: QueueReader) -> APIRouter:
    """Return the routes of actions."""
    routes = APIRouter(prefix="/actions", tags=["actions"], route_class=JsonRoute)
    actions = Definitions(
        kind="action",
        noun="an action",
        model=ActionDefinition,
        name_field="ref",
        inbox=inbox,
        find=reader.action,
        changes_cursor="changes",
    )
    _add_reading_routes(routes, actions, reader)
    _add_changing_routes(routes, actions)
    _add_deleting_route(routes, actions)
    _add_queue_routes(routes, queues)
    return routes


def _add_reading_routes(
    routes: APIRouter, actions: Definitions[ActionDetail], reader: DefinitionReader
) -> None:
    @routes.get("", summary="List actions by name", responses=documented(Code.UNKNOWN_FIELD))
    async def get_actions(query: Annotated[Paging, Query()], scope: CallerScope) -> Page[StoredAction]:
        after = cursor_name(_CURSOR, query.cursor)
        items, last = await reader.actions(after_ref=after, limit=query.limit, scope=scope)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, last))

    @routes.get(
        "/{ref}",
        summary="Read an action",
        responses={
            **TAGGED,
            304: {"description": "The action still has the `ETag` of `If-None-Match`"},
            **documented(Code.NOT_FOUND),
        },
        description="With the schemas that its workers derived from their code; the `ETag` is that of the "
        "definition alone.",
        response_model=ActionDetail,
    )
    async def get_action(ref: PossibleRef, response: Response, if_none_match: IfNoneMatch = None) -> Any:
        action = await actions.read(ref, response)
        tag = response.headers["ETag"]
        if is_unchanged(if_none_match, tag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return action

    @routes.get(
        "/{ref}/changes",
        summary="List changes of an action, newest first",
        description="Each with who, when and what: limit, pause and all other fields, creation and deletion; "
        "stored in the transaction of the change. The changes of a deleted action stay.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(ref: PossibleRef, query: Annotated[Paging, Query()]) -> Page[ChangeEntry]:
        return await actions.changes(ref, reader, query)


def _add_changing_routes(routes: APIRouter, actions: Definitions[ActionDetail]) -> None:
    @routes.put(
        "/{ref}",
        summary="Replace the definition of an action; a changed limit takes effect at once",
        responses=CHANGED,
    )
    async def put_action(
        ref: RefPath,
        fields: GivenFields,
        caller: ConditionalCaller,
        response: Response,
        if_none_match: IfNoneMatch = None,
    ) -> ActionDetail:
        return await actions.put(ref, fields.given, caller, response, if_none_match=if_none_match)

    @routes.patch(
        "/{ref}",
        summary="Change fields of an action; a changed limit takes effect at once",
        responses={**documented(Code.NOT_FOUND), **CHANGED},
    )
    async def patch_action(
        ref: PossibleRef, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> ActionDetail:
        return await actions.change(ref, fields.given, caller, response)

    @routes.post(
        "/{ref}/pause",
        summary="Pause an action: its requests are accepted, and nothing starts",
        responses=SWITCHED,
    )
    async def post_pause(ref: PossibleRef, caller: ConditionalCaller, response: Response) -> ActionDetail:
        return await actions.change(ref, {"paused": True}, caller, response)

    @routes.post("/{ref}/resume", summary="Resume an action", responses=SWITCHED)
    async def post_resume(ref: PossibleRef, caller: ConditionalCaller, response: Response) -> ActionDetail:
        return await actions.change(ref, {"paused": False}, caller, response)


def _add_deleting_route(routes: APIRouter, actions: Definitions[ActionDetail]) -> None:
    @routes.delete(
        "/{ref}",
        summary="Delete an action, with or without waiting executions",
        description="Its executions stay in the history. It is never deleted while one of them runs.",
        responses=documented(Code.NOT_FOUND, Code.IN_USE, Code.PRECONDITION_FAILED, Code.UNKNOWN_FIELD),
        response_model=ActionDeleted,
    )
    async def delete_action(
        ref: PossibleRef, query: Annotated[DeletionParameters, Query()], caller: ConditionalCaller
    ) -> Any:
        cancel_max = DELETED_WITH_MAX if query.waiting == "cancel" else 0
        found = await actions.delete(ref, caller.who, if_match=caller.if_match, cancel_max=cancel_max)
        if "code" in found:
            counts = {"waiting": found["waiting"], "running": found["running"]}
            return answer(problem(Code.IN_USE, found["message"], **counts))
        return ActionDeleted(action_ref=ref, cancelled=found["cancelled"])


def _add_queue_routes(routes: APIRouter, queues: QueueReader) -> None:
    @routes.get(
        "/{ref}/queue-stats",
        summary="Get queue statistics of an action, at one instant",
        responses=documented(Code.NOT_FOUND),
    )
    async def get_queue_stats(ref: PossibleRef) -> QueueStats:
        found = await queues.queue_stats(ref)
        if found is None:
            raise unknown("action", ref)
        return found

    @routes.get(
        "/{ref}/queue",
        summary="List the queue of an action, in order, and its slot holders",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_queue(ref: PossibleRef, query: Annotated[QueueListing, Query()]) -> ActionQueuePage:
        start = _queue_start(query.cursor)
        found = await queues.queue(ref, concurrency_key=query.concurrency_key, start=start, limit=query.limit)
        if found is None:
            raise unknown("action", ref)
        shown, last = found
        cursor = None if last is None else cursor_of(_QUEUE_CURSOR, *last)
        return shown.model_copy(update={"next_cursor": cursor})


def _queue_start(cursor: str | None) -> QueueStart:
    if cursor is None:
        return QueueStart()
    start = QueueStart(*cursor_ids(_QUEUE_CURSOR, cursor, count=2))
    if start.priority not in PRIORITIES:
        raise invalid_cursor()
    return start
