"""The routes of resources: define, change, pause, delete, and show who uses, holds and waits for them."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from turnstile.common.domain.errors import Code
from turnstile.common.fields import check_resource
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import DefinitionFields, JsonRoute
from turnstile.executor.api.conditions import TAGGED, ConditionalCaller
from turnstile.executor.api.definition_routes import CHANGED, SWITCHED, Definitions
from turnstile.executor.api.paging import (
    Page,
    Paging,
    cursor_id,
    cursor_name,
    next_cursor,
    next_offset,
)
from turnstile.executor.api.problems import CheckedRouter, answer, documented, problem
from turnstile.executor.definitions import ResourceDefinition
from turnstile.executor.inbox import Inbox
from turnstile.executor.leader.commands import unknown
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.queue_reader import QueueReader
from turnstile.executor.queries.schemas import ChangeEntry, ResourceQueuePage, StoredResource

_CURSOR: Final = "resources"
_QUEUE_CURSOR: Final = "resource-queue"


async def _possible_name(
    name: Annotated[str, Path(description="The resource's name.", examples=["autocad"])],
) -> str:
    try:
        return check_resource(name)
    except ValueError:
        raise unknown("resource", name) from None


PossibleName = Annotated[str, Depends(_possible_name)]
"""The name in a path; a name that no resource can have is answered with 404."""


class ResourceFields(DefinitionFields):
    """Fields of a definition. The path names the resource."""

    definition = ResourceDefinition


_EXAMPLES: Final[dict[str, Example]] = {
    "licences": {"summary": "Ten licences", "value": {"capacity": 10, "rank": 1}},
    "api": {
        "summary": "Five connections, 100 calls a minute, shared fairly between actions",
        "value": {"capacity": 5, "rate": {"starts": 100, "per": "1m"}, "order": "fair"},
    },
}
GivenFields = Annotated[ResourceFields, Body(openapi_examples=_EXAMPLES)]


class ResourceDeleted(BaseModel):
    """The resource was deleted."""

    name: str = Field(examples=["autocad"])


def resource_routes(inbox: Inbox, reader: DefinitionReader, queues: QueueReader) -> APIRouter:
    """Return the routes of resources."""
    routes = CheckedRouter(prefix="/resources", tags=["resources"], route_class=JsonRoute)
    resources = Definitions(
        kind="resource",
        noun="a resource",
        model=ResourceDefinition,
        name_field="name",
        inbox=inbox,
        find=reader.resource,
        changes_cursor="resource-changes",
    )
    _add_reading_routes(routes, resources, reader)
    _add_queue_route(routes, queues)
    _add_changing_routes(routes, resources)
    _add_deleting_route(routes, resources)
    return routes


def _add_reading_routes(
    routes: APIRouter, resources: Definitions[StoredResource], reader: DefinitionReader
) -> None:
    @routes.get("", summary="List resources by name", responses=documented(Code.UNKNOWN_FIELD))
    async def get_resources(query: Annotated[Paging, Query()]) -> Page[StoredResource]:
        after = cursor_name(_CURSOR, query.cursor)
        items, last = await reader.resources(after_name=after, limit=query.limit)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, last))

    @routes.get(
        "/{name}",
        summary="Read a resource, and which actions use it",
        responses={**TAGGED, **documented(Code.NOT_FOUND)},
    )
    async def get_resource(name: PossibleName, response: Response) -> StoredResource:
        return await resources.read(name, response)

    @routes.get(
        "/{name}/changes",
        summary="List changes of a resource, newest first",
        description="Each with who, when and what; stored in the transaction of the change. The changes of a "
        "deleted resource stay.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(name: PossibleName, query: Annotated[Paging, Query()]) -> Page[ChangeEntry]:
        return await resources.changes(name, reader, query)


def _add_queue_route(routes: APIRouter, queues: QueueReader) -> None:
    @routes.get(
        "/{name}/queue",
        summary="List the executions that wait for a resource, in order, and those that hold its units",
        description="Positions are those of the moment: what passes between two pages moves the rest up. "
        "Executions whose route has a closed gate wait in the queues of their actions.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_resource_queue(name: PossibleName, query: Annotated[Paging, Query()]) -> ResourceQueuePage:
        offset = cursor_id(_QUEUE_CURSOR, query.cursor, first=0)
        page = await queues.resource_queue(name, offset=offset, limit=query.limit)
        if page is None:
            raise unknown("resource", name)
        cursor = next_offset(_QUEUE_CURSOR, offset, limit=query.limit, total=page.waiting)
        return page.model_copy(update={"next_cursor": cursor})


def _add_changing_routes(routes: APIRouter, resources: Definitions[StoredResource]) -> None:
    @routes.put(
        "/{name}", summary="Replace the definition of a resource; it takes effect at once", responses=CHANGED
    )
    async def put_resource(
        name: str, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredResource:
        return await resources.put(name, fields.given, caller, response)

    @routes.patch(
        "/{name}",
        summary="Change fields of a resource; a changed capacity takes effect at once",
        description="A capacity may be lowered below what is in use: nothing is taken away, and nothing "
        "starts until the units fit again. Executions of actions that take more units than the capacity "
        "wait; `warnings` names these actions.",
        responses={**documented(Code.NOT_FOUND), **CHANGED},
    )
    async def patch_resource(
        name: PossibleName, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredResource:
        return await resources.change(name, fields.given, caller, response)

    @routes.post(
        "/{name}/pause",
        summary="Pause a resource: nothing that uses it starts; what runs continues",
        responses=SWITCHED,
    )
    async def post_pause(name: PossibleName, caller: ConditionalCaller, response: Response) -> StoredResource:
        return await resources.change(name, {"paused": True}, caller, response)

    @routes.post("/{name}/resume", summary="Resume a resource", responses=SWITCHED)
    async def post_resume(
        name: PossibleName, caller: ConditionalCaller, response: Response
    ) -> StoredResource:
        return await resources.change(name, {"paused": False}, caller, response)


def _add_deleting_route(routes: APIRouter, resources: Definitions[StoredResource]) -> None:
    @routes.delete(
        "/{name}",
        summary="Delete a resource, if no action uses it and no execution holds it or waits for it",
        responses=documented(Code.NOT_FOUND, Code.IN_USE),
        response_model=ResourceDeleted,
    )
    async def delete_resource(name: PossibleName, caller: CurrentCaller) -> Any:
        found = await resources.delete(name, caller)
        if "code" not in found:
            return ResourceDeleted(name=name)
        counts = {each: found[each] for each in ("used_by", "held", "waiting")}
        return answer(problem(Code.IN_USE, found["message"], **counts))
