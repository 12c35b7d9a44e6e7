"""The routes of pools: order, weights, pause, and show who holds and waits for their worker slots."""

from typing import Annotated, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from fastapi.openapi.models import Example

from turnstile.common.domain.errors import Code
from turnstile.common.fields import is_pool
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
from turnstile.executor.api.problems import CheckedRouter, documented
from turnstile.executor.definitions import PoolDefinition
from turnstile.executor.inbox import Inbox
from turnstile.executor.leader.commands import unknown
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.queue_reader import QueueReader
from turnstile.executor.queries.schemas import ChangeEntry, PoolQueuePage, StoredPool

_CURSOR: Final = "pools"
_QUEUE_CURSOR: Final = "pool-queue"


async def _possible_name(
    name: Annotated[str, Path(description="The pool's name.", examples=["default"])],
) -> str:
    if not is_pool(name):
        raise unknown("pool", name)
    return name


PossibleName = Annotated[str, Depends(_possible_name)]
"""The name in a path; a name that no pool can have is answered with 404."""


class PoolFields(DefinitionFields):
    """Fields of a definition. The path names the pool."""

    definition = PoolDefinition


_EXAMPLES: Final[dict[str, Example]] = {
    "weights": {
        "summary": "Three renderings start while one of each other action does",
        "value": {"weights": {"reports.render": 3}},
    },
    "arrival": {"summary": "The oldest execution of all actions first", "value": {"order": "arrival"}},
}
GivenFields = Annotated[PoolFields, Body(openapi_examples=_EXAMPLES)]


def pool_routes(inbox: Inbox, reader: DefinitionReader, queues: QueueReader) -> APIRouter:
    """Return the routes of pools."""
    routes = CheckedRouter(prefix="/pools", tags=["pools"], route_class=JsonRoute)
    pools = Definitions(
        kind="pool",
        noun="a pool",
        model=PoolDefinition,
        name_field="name",
        inbox=inbox,
        find=reader.pool,
        changes_cursor="pool-changes",
    )
    _add_reading_routes(routes, pools, reader, queues)
    _add_changing_routes(routes, pools)
    return routes


def _add_reading_routes(
    routes: APIRouter, pools: Definitions[StoredPool], reader: DefinitionReader, queues: QueueReader
) -> None:
    @routes.get(
        "",
        summary="List pools by name, with their capacity and what waits",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_pools(query: Annotated[Paging, Query()]) -> Page[StoredPool]:
        after = cursor_name(_CURSOR, query.cursor)
        items, last = await reader.pools(after_name=after, limit=query.limit)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, last))

    @routes.get(
        "/{name}",
        summary="Read a pool, and which actions are in it",
        responses={**TAGGED, **documented(Code.NOT_FOUND)},
    )
    async def get_pool(name: PossibleName, response: Response) -> StoredPool:
        return await pools.read(name, response)

    @routes.get(
        "/{name}/changes",
        summary="List changes of a pool, newest first",
        description="Each with who, when and what; stored in the transaction of the change.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(name: PossibleName, query: Annotated[Paging, Query()]) -> Page[ChangeEntry]:
        return await pools.changes(name, reader, query)

    @routes.get(
        "/{name}/queue",
        summary="List the executions that wait for a worker of a pool, in order, and those that have one",
        description="Positions are those of the moment: what starts between two pages moves the rest up.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_pool_queue(name: PossibleName, query: Annotated[Paging, Query()]) -> PoolQueuePage:
        offset = cursor_id(_QUEUE_CURSOR, query.cursor, first=0)
        page = await queues.pool_queue(name, offset=offset, limit=query.limit)
        if page is None:
            raise unknown("pool", name)
        cursor = next_offset(_QUEUE_CURSOR, offset, limit=query.limit, total=page.waiting)
        return page.model_copy(update={"next_cursor": cursor})


def _add_changing_routes(routes: APIRouter, pools: Definitions[StoredPool]) -> None:
    @routes.put(
        "/{name}", summary="Replace the settings of a pool; they take effect at once", responses=CHANGED
    )
    async def put_pool(
        name: str, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredPool:
        return await pools.put(name, fields.given, caller, response)

    @routes.patch(
        "/{name}",
        summary="Change settings of a pool; they take effect at once",
        description="Weights that are not given stay; a weight of 1 is the default. Waiting executions keep "
        "their positions in their queues. `warnings` names actions with a weight that are not in the pool.",
        responses={**documented(Code.NOT_FOUND), **CHANGED},
    )
    async def patch_pool(
        name: PossibleName, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredPool:
        return await pools.change(name, fields.given, caller, response)

    @routes.post(
        "/{name}/pause",
        summary="Pause a pool: nothing in it starts; what runs continues",
        responses=SWITCHED,
    )
    async def post_pause(name: PossibleName, caller: ConditionalCaller, response: Response) -> StoredPool:
        return await pools.change(name, {"paused": True}, caller, response)

    @routes.post("/{name}/resume", summary="Resume a pool", responses=SWITCHED)
    async def post_resume(name: PossibleName, caller: ConditionalCaller, response: Response) -> StoredPool:
        return await pools.change(name, {"paused": False}, caller, response)
