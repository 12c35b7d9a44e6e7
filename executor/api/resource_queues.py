"""`GET /resources/{name}/queue`: what waits for a resource, in order, and the holders of its units."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.api.paging import Paging, cursor_id, invalid_cursor, next_cursor
from turnstile.executor.api.problems import documented
from turnstile.executor.queries.reader import Reader
from turnstile.executor.queries.schemas import ResourceQueuePage

_CURSOR: Final = "resource-queue"
_OFFSET_MAX: Final = 10_000_000

NamePath = Annotated[
    str, Path(max_length=512, pattern=r"^[^\x00]*$", description="The resource's name.", examples=["autocad"])
]


def resource_queue_routes(reader: Reader) -> APIRouter:
    """Return the route of the queues of resources."""
    routes = APIRouter(prefix="/resources", tags=["resources"])

    @routes.get(
        "/{name}/queue",
        summary="List the executions that wait for a resource, in order, and those that hold its units",
        description="Positions are those of the moment: what passes between two pages moves the rest up. "
        "Executions whose route has a closed gate wait in the queues of their actions.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_resource_queue(name: NamePath, query: Annotated[Paging, Query()]) -> ResourceQueuePage:
        offset = cursor_id(_CURSOR, query.cursor, first=0)
        if offset > _OFFSET_MAX:
            raise invalid_cursor()
        page = await reader.resource_queue(name, offset=offset, limit=query.limit)
        if page is None:
            raise Refusal(Code.NOT_FOUND, f"resource: there is no resource {name[:100]!r}")
        end = offset + len(page.items)
        cursor = next_cursor(_CURSOR, end if page.items and end < page.waiting else None)
        return page.model_copy(update={"next_cursor": cursor})

    return routes
