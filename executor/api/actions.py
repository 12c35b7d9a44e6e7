"""The routes of actions: define, change, pause, and see how their lines stand."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field

from common.domain.errors import Code
from executor.api.bodies import read_value
from executor.api.definitions import Definitions, can_name_an_action, unknown_action
from executor.api.executions import FilterText
from executor.api.paging import Page, Paging, cursor_of, places_of, ticket_of
from executor.api.problems import documented
from executor.api.requested import requested_body
from executor.api.services import ApiServices
from executor.reading import ActionShape, LineShape, LineStart, QueueStats, Reader

_CURSOR = "actions"
_LINE_CURSOR = "line"
RefPath = Annotated[str, Path(description="The action's name.", examples=["reports.render"])]


async def _possible_ref(ref: RefPath) -> str:
    if not can_name_an_action(ref):
        raise unknown_action(ref)
    return ref


PossibleRef = Annotated[str, Depends(_possible_ref)]
"""A name in the path that may be one; what cannot be is not found."""


class LineListing(Paging):
    """Which part of a line to show."""

    concurrency_key: FilterText | None = Field(default=None, description="Only the line of this key.")


def action_routes(services: ApiServices, reader: Reader) -> APIRouter:
    """Return the routes of actions."""
    routes = APIRouter(prefix="/actions", tags=["actions"])
    definitions = Definitions(services, reader)
    _add_definition_routes(routes, definitions, reader)
    _add_line_routes(routes, definitions, reader)
    return routes


def _add_definition_routes(routes: APIRouter, definitions: Definitions, reader: Reader) -> None:
    @routes.get("", summary="List actions by name", responses=documented(Code.UNKNOWN_FIELD))
    async def get_actions(asked: Annotated[Paging, Query()]) -> Page[ActionShape]:
        after = None if asked.cursor is None else places_of(_CURSOR, asked.cursor, count=1)[0]
        items, last = await reader.actions(after_ref=after, limit=asked.limit)
        return Page(items=items, next_cursor=None if last is None else cursor_of(_CURSOR, last))

    @routes.get("/{ref}", summary="Read one action", responses=documented(Code.NOT_FOUND))
    async def get_action(ref: PossibleRef) -> ActionShape:
        return await definitions.read(ref)

    @routes.put(
        "/{ref}",
        summary="Store a whole definition; a changed limit acts at once",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("ActionFields"),
    )
    async def put_action(ref: RefPath, request: Request) -> ActionShape:
        return await definitions.put(ref, await read_value(request))

    @routes.patch(
        "/{ref}",
        summary="Change some fields; a changed limit acts at once",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("ActionFields"),
    )
    async def patch_action(ref: PossibleRef, request: Request) -> ActionShape:
        return await definitions.change(ref, await read_value(request))

    @routes.post("/{ref}/pause", summary="Admit, but grant nothing", responses=documented(Code.NOT_FOUND))
    async def post_pause(ref: PossibleRef) -> ActionShape:
        return await definitions.change(ref, {"paused": True})

    @routes.post("/{ref}/resume", summary="Grant again", responses=documented(Code.NOT_FOUND))
    async def post_resume(ref: PossibleRef) -> ActionShape:
        return await definitions.change(ref, {"paused": False})


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
