"""The routes of resources and pools: define, change, pause; who holds them and what waits for them."""

from typing import Annotated, Final

from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from turnstile.common.domain.errors import Code
from turnstile.common.fields import check_pool, check_resource
from turnstile.executor.api.bodies import DefinitionFields
from turnstile.executor.api.definition_routes import (
    Change,
    DefinitionKind,
    Texts,
    add_definition_routes,
    add_queue_route,
)
from turnstile.executor.api.paging import Page
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.schemas import (
    PoolQueuePage,
    ResourceQueuePage,
    StoredPool,
    StoredResource,
)


class ResourceFields(DefinitionFields):
    """Fields of a definition. The path names the resource."""

    definition = ResourceDefinition


class PoolFields(DefinitionFields):
    """Fields of a definition. The path names the pool."""

    definition = PoolDefinition


class ResourceDeleted(BaseModel):
    """The resource was deleted."""

    name: str = Field(examples=["autocad"])


_RESOURCES: Final[DefinitionKind[StoredResource]] = DefinitionKind(
    name="resource",
    noun="a resource",
    named_by="name",
    check=check_resource,
    example="autocad",
    fields=ResourceFields,
    examples={
        "licences": Example(summary="Ten licences", value={"capacity": 10, "rank": 1}),
        "api": Example(
            summary="Five connections, 100 calls a minute, shared fairly between actions",
            value={"capacity": 5, "rate": {"starts": 100, "per": "1m"}, "order": "fair"},
        ),
    },
    stored=StoredResource,
    page=Page[StoredResource],
    find=DefinitionReader.resource,
    list_after=lambda reader, after, limit, _: reader.resources(after_name=after, limit=limit),
    texts=Texts(
        all="List resources by name",
        read="Read a resource, and which actions use it",
        put="Replace the definition of a resource; it takes effect at once",
        patch="Change fields of a resource; a changed capacity takes effect at once",
        pause="Pause a resource: nothing that uses it starts; what runs continues",
        changes="Each with who, when and what; stored in the transaction of the change. The changes of a "
        "deleted resource stay.",
        more={
            "patch": "A capacity may be lowered below what is in use: nothing is taken away, and nothing "
            "starts until the units fit again. Executions of actions that take more units than the "
            "capacity wait; `warnings` names these actions."
        },
    ),
)


_POOLS: Final[DefinitionKind[StoredPool]] = DefinitionKind(
    name="pool",
    noun="a pool",
    named_by="name",
    check=check_pool,
    example="default",
    fields=PoolFields,
    examples={
        "weights": Example(
            summary="Three renderings start while one of each other action does",
            value={"weights": {"reports.render": 3}},
        ),
        "arrival": Example(summary="The oldest execution of all actions first", value={"order": "arrival"}),
    },
    stored=StoredPool,
    page=Page[StoredPool],
    find=DefinitionReader.pool,
    list_after=lambda reader, after, limit, _: reader.pools(after_name=after, limit=limit),
    texts=Texts(
        all="List pools by name, with their capacity and what waits",
        read="Read a pool, and which actions are in it",
        put="Replace the settings of a pool; they take effect at once",
        patch="Change settings of a pool; they take effect at once",
        pause="Pause a pool: nothing in it starts; what runs continues",
        changes="Each with who, when and what; stored in the transaction of the change.",
        more={
            "patch": "Weights that are not given stay; a weight of 1 is the default. Waiting executions "
            "keep their positions in their queues. `warnings` names actions with a weight that are not "
            "in the pool."
        },
    ),
)

resource_routes = ApiRoutes(prefix="/resources", tag="resources")
add_definition_routes(resource_routes, _RESOURCES)
add_queue_route(
    resource_routes,
    _RESOURCES,
    ResourceQueuePage,
    lambda reader, name, offset, limit: reader.resource_queue(name, offset=offset, limit=limit),
    summary="List the executions that wait for a resource, in order, and those that hold its units",
    description="Positions are those of the moment: what passes between two pages moves the rest up. "
    "Executions whose route has a closed gate wait in the queues of their actions.",
)


@resource_routes.delete(
    "/{name}",
    summary="Delete a resource, if no action uses it and no execution holds it or waits for it",
    responses=documented(Code.NOT_FOUND, Code.IN_USE, Code.PRECONDITION_FAILED),
)
async def delete_resource(name: Annotated[str, _RESOURCES.existing], change: Change) -> ResourceDeleted:
    await change.decide("resource", name, None)
    return ResourceDeleted(name=name)


pool_routes = ApiRoutes(prefix="/pools", tag="pools")
add_definition_routes(pool_routes, _POOLS)
add_queue_route(
    pool_routes,
    _POOLS,
    PoolQueuePage,
    lambda reader, name, offset, limit: reader.pool_queue(name, offset=offset, limit=limit),
    summary="List the executions that wait for a worker of a pool, in order, and those that have one",
    description="Positions are those of the moment: what starts between two pages moves the rest up.",
)
