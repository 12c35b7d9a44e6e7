"""The routes of actions: define, change, pause, delete, and see how their lines stand."""

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from turnstile.common.domain.errors import Code
from turnstile.executor.api.bodies import read_value
from turnstile.executor.api.changes import add_changes_route
from turnstile.executor.api.definitions import (
    DELETED_WITH_MAX,
    AskingNow,
    Definitions,
    PossibleRef,
    RefPath,
    unknown_action,
)
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_of, places_of, ticket_of
from turnstile.executor.api.preconditions import ETAG_HEADER, IfNoneMatch, etag_of, is_unchanged
from turnstile.executor.api.problems import answer, documented, problem
from turnstile.executor.api.requested import requested_body
from turnstile.executor.api.services import ApiServices
from turnstile.executor.decisions import Deletion
from turnstile.executor.reading import ActionShape, LineShape, LineStart, QueueStats, Reader

_CURSOR = "actions"
_LINE_CURSOR = "line"
_USED: Final = documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)
_SHOWN: Final[dict[int | str, dict[str, Any]]] = {200: {"headers": ETAG_HEADER}}


class LineListing(Paging):
    """Which part of a line to show."""

    concurrency_key: FilterText | None = Field(default=None, description="Only the line of this key.")


class DeletionAsked(BaseModel):
    """What is to become of what waits. No other parameters are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    waiting: Literal["refuse", "cancel"] = Field(
        default="refuse",
        description="refuse: an action that executions wait for stays; cancel: they end with it.",
    )


class ActionDeleted(BaseModel):
    """It is gone; its executions stay in the record."""

    action_ref: str = Field(examples=["reports.render"])
    cancelled: int = Field(description="Executions that waited and were ended with it.")


def action_routes(services: ApiServices, reader: Reader) -> APIRouter:
    """Return the routes of actions."""
    routes = APIRouter(prefix="/actions", tags=["actions"])
    definitions = Definitions(services, reader)
    _add_definition_routes(routes, definitions, reader)
    _add_changing_routes(routes, definitions)
    _add_deleting_route(routes, definitions)
    add_changes_route(routes, reader)
    _add_line_routes(routes, definitions, reader)
    return routes


def _add_definition_routes(routes: APIRouter, definitions: Definitions, reader: Reader) -> None:
    @routes.get("", summary="List actions by name", responses=documented(Code.UNKNOWN_FIELD))
    async def get_actions(asked: Annotated[Paging, Query()]) -> Page[ActionShape]:
        after = None if asked.cursor is None else places_of(_CURSOR, asked.cursor, count=1)[0]
        items, last = await reader.actions(after_ref=after, limit=asked.limit)
        return Page(items=items, next_cursor=None if last is None else cursor_of(_CURSOR, last))

    @routes.get(
        "/{ref}",
        summary="Read one action",
        responses={
            **_SHOWN,
            304: {"description": "It still is the one of `If-None-Match`"},
            **documented(Code.NOT_FOUND),
        },
        response_model=ActionShape,
    )
    async def get_action(ref: PossibleRef, response: Response, if_none_match: IfNoneMatch = None) -> Any:
        action = await definitions.read(ref)
        if is_unchanged(if_none_match, action):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag_of(action)})
        return _tagged(action, response)


def _add_changing_routes(routes: APIRouter, definitions: Definitions) -> None:
    @routes.put(
        "/{ref}",
        summary="Store a whole definition; a changed limit acts at once",
        responses={
            **_SHOWN,
            **documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED),
        },
        openapi_extra=requested_body("ActionFields"),
    )
    async def put_action(
        ref: RefPath,
        asking: AskingNow,
        request: Request,
        response: Response,
        if_none_match: IfNoneMatch = None,
    ) -> ActionShape:
        value = await read_value(request)
        stored = await definitions.put(ref, value, asking, if_none_match=if_none_match)
        return _tagged(stored, response)

    @routes.patch(
        "/{ref}",
        summary="Change some fields; a changed limit acts at once",
        responses={
            **_SHOWN,
            **documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED),
        },
        openapi_extra=requested_body("ActionFields"),
    )
    async def patch_action(
        ref: PossibleRef, asking: AskingNow, request: Request, response: Response
    ) -> ActionShape:
        return _tagged(await definitions.change(ref, await read_value(request), asking), response)

    @routes.post("/{ref}/pause", summary="Admit, but grant nothing", responses={**_SHOWN, **_USED})
    async def post_pause(ref: PossibleRef, asking: AskingNow, response: Response) -> ActionShape:
        return _tagged(await definitions.change(ref, {"paused": True}, asking), response)

    @routes.post("/{ref}/resume", summary="Grant again", responses={**_SHOWN, **_USED})
    async def post_resume(ref: PossibleRef, asking: AskingNow, response: Response) -> ActionShape:
        return _tagged(await definitions.change(ref, {"paused": False}, asking), response)


def _add_deleting_route(routes: APIRouter, definitions: Definitions) -> None:
    @routes.delete(
        "/{ref}",
        summary="Delete it; say what becomes of executions that wait",
        description="Its executions stay in the record. While something of it runs it is never deleted.",
        responses=documented(Code.NOT_FOUND, Code.IN_USE, Code.PRECONDITION_FAILED, Code.UNKNOWN_FIELD),
        response_model=ActionDeleted,
    )
    async def delete_action(
        ref: PossibleRef, asked: Annotated[DeletionAsked, Query()], asking: AskingNow
    ) -> Any:
        with_waiting = asked.waiting == "cancel"
        deletion = await definitions.delete(ref, asking, with_waiting=with_waiting)
        if deletion.deleted:
            return ActionDeleted(action_ref=ref, cancelled=len(deletion.ended))
        detail = _in_use(ref, deletion, with_waiting=with_waiting)
        return answer(problem(Code.IN_USE, detail, waiting=deletion.waiting, running=deletion.running))


def _in_use(ref: str, deletion: Deletion, *, with_waiting: bool) -> str:
    bulk = f'POST /api/v1/executions/cancel with {{"filter": {{"action_ref": "{ref}"}}}}'
    if deletion.running:
        return (
            f"ref: of {ref!r} {deletion.running} run and {deletion.waiting} wait; wait for the end of those "
            f"that run, or end them: {bulk}"
        )
    if with_waiting:
        return (
            f"waiting: of {ref!r} {deletion.waiting} wait, at most {DELETED_WITH_MAX} end with their action; "
            f"end them first: {bulk}"
        )
    return (
        f"waiting: of {ref!r} {deletion.waiting} wait; send ?waiting=cancel to end them with it, or wait "
        "until they have run"
    )


def _tagged(action: ActionShape, response: Response) -> ActionShape:
    response.headers["ETag"] = etag_of(action)
    return action


def _add_line_routes(routes: APIRouter, definitions: Definitions, reader: Reader) -> None:
    @routes.get(
        "/{ref}/queue-stats",
        summary="How its queues stand, at one instant",
        responses=documented(Code.NOT_FOUND),
    )
    async def get_queue_stats(ref: PossibleRef) -> QueueStats:
        found = await reader.queue_stats(ref)
        if found is None:
            raise unknown_action(ref)
        return found

    @routes.get(
        "/{ref}/queue",
        summary="Who waits, in order, and who holds the slots",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_queue(ref: PossibleRef, asked: Annotated[LineListing, Query()]) -> LineShape:
        await definitions.read(ref)
        start = LineStart(ticket_of(_LINE_CURSOR, asked.cursor) or 0)
        shape, rest = await reader.line(
            ref, concurrency_key=asked.concurrency_key, start=start, limit=asked.limit
        )
        return shape.model_copy(
            update={"next_cursor": None if rest is None else cursor_of(_LINE_CURSOR, rest.after_id)}
        )
