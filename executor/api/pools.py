"""The routes of pools: order, weights, pause, and show who holds and waits for their worker slots."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from fastapi.openapi.models import Example

from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.common.fields import is_pool
from turnstile.executor.api.bodies import DefinitionFields, JsonRoute
from turnstile.executor.api.conditions import TAGGED, ConditionalCaller, tag_of
from turnstile.executor.api.paging import (
    ID_MAX,
    Page,
    Paging,
    cursor_id,
    cursor_parts,
    invalid_cursor,
    next_cursor,
)
from turnstile.executor.api.problems import CheckedRouter, documented
from turnstile.executor.definition_store import PoolStore, unknown_pool
from turnstile.executor.definitions import PoolDefinition
from turnstile.executor.operations import Operations
from turnstile.executor.queries.pools import PoolReader
from turnstile.executor.queries.reader import Reader
from turnstile.executor.queries.schemas import ChangeEntry, PoolQueuePage, StoredPool

_CURSOR: Final = "pools"
_CHANGES_CURSOR: Final = "pool-changes"
_QUEUE_CURSOR: Final = "pool-queue"
_OFFSET_MAX: Final = 100_000


async def _possible_name(
    name: Annotated[str, Path(description="The pool's name.", examples=["default"])],
) -> str:
    if not is_pool(name):
        raise unknown_pool(name)
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


def pool_routes(database: Database, operations: Operations, reader: PoolReader, queues: Reader) -> APIRouter:
    """Return the routes of pools."""
    routes = CheckedRouter(prefix="/pools", tags=["pools"], route_class=JsonRoute)
    pools = PoolStore(database, operations, reader)
    _add_reading_routes(routes, pools, reader, queues)
    _add_changing_routes(routes, pools)
    return routes


def _add_reading_routes(routes: APIRouter, pools: PoolStore, reader: PoolReader, queues: Reader) -> None:
    @routes.get(
        "",
        summary="List pools by name, with their capacity and what waits",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_pools(query: Annotated[Paging, Query()]) -> Page[StoredPool]:
        after = None if query.cursor is None else cursor_parts(_CURSOR, query.cursor, count=1)[0]
        items, last = await reader.pools(after_name=after, limit=query.limit)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, last))

    @routes.get(
        "/{name}",
        summary="Read a pool, and which actions are in it",
        responses={**TAGGED, **documented(Code.NOT_FOUND)},
    )
    async def get_pool(name: PossibleName, response: Response) -> StoredPool:
        return _tagged(await pools.read(name), response)

    @routes.get(
        "/{name}/changes",
        summary="List changes of a pool, newest first",
        description="Each with who, when and what; stored in the transaction of the change.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(name: PossibleName, query: Annotated[Paging, Query()]) -> Page[ChangeEntry]:
        before_id = cursor_id(_CHANGES_CURSOR, query.cursor, first=ID_MAX)
        items, last = await queues.changes("pool", name, before_id=before_id, limit=query.limit)
        if not items and query.cursor is None:
            await pools.read(name)
        return Page(items=items, next_cursor=next_cursor(_CHANGES_CURSOR, last))

    @routes.get(
        "/{name}/queue",
        summary="List the executions that wait for a worker of a pool, in order, and those that have one",
        description="Positions are those of the moment: what starts between two pages moves the rest up.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_pool_queue(name: PossibleName, query: Annotated[Paging, Query()]) -> PoolQueuePage:
        offset = cursor_id(_QUEUE_CURSOR, query.cursor, first=0)
        if offset > _OFFSET_MAX:
            raise invalid_cursor()
        page = await reader.queue(name, offset=offset, limit=query.limit)
        if page is None:
            raise unknown_pool(name)
        end = offset + len(page.items)
        cursor = next_cursor(_QUEUE_CURSOR, end if page.items and end < page.waiting else None)
        return page.model_copy(update={"next_cursor": cursor})


def _add_changing_routes(routes: APIRouter, pools: PoolStore) -> None:
    changes = {**TAGGED, **documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED)}
    switches = {**TAGGED, **documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)}

    async def changed(
        name: str, given: Mapping[str, Any], caller: ConditionalCaller, response: Response
    ) -> StoredPool:
        check = caller.check(PoolDefinition, "pool")
        return _tagged(await pools.change(name, given, caller.who, check=check), response)

    @routes.put(
        "/{name}", summary="Replace the settings of a pool; they take effect at once", responses=changes
    )
    async def put_pool(
        name: str, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredPool:
        check = caller.check(PoolDefinition, "pool")
        return _tagged(await pools.put(name, fields.given, caller.who, check=check), response)

    @routes.patch(
        "/{name}",
        summary="Change settings of a pool; they take effect at once",
        description="Weights that are not given stay; a weight of 1 is the default. Waiting executions keep "
        "their positions in their queues. `warnings` names actions with a weight that are not in the pool.",
        responses={**documented(Code.NOT_FOUND), **changes},
    )
    async def patch_pool(
        name: PossibleName, fields: GivenFields, caller: ConditionalCaller, response: Response
    ) -> StoredPool:
        return await changed(name, fields.given, caller, response)

    @routes.post(
        "/{name}/pause",
        summary="Pause a pool: nothing in it starts; what runs continues",
        responses=switches,
    )
    async def post_pause(name: PossibleName, caller: ConditionalCaller, response: Response) -> StoredPool:
        return await changed(name, {"paused": True}, caller, response)

    @routes.post("/{name}/resume", summary="Resume a pool", responses=switches)
    async def post_resume(name: PossibleName, caller: ConditionalCaller, response: Response) -> StoredPool:
        return await changed(name, {"paused": False}, caller, response)


def _tagged(pool: StoredPool, response: Response) -> StoredPool:
    response.headers["ETag"] = tag_of(pool, PoolDefinition)
    return pool
