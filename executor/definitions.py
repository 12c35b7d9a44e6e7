"""What users define beside actions: shared resources, pools, and the limits and weights of single keys.

In: fields from `actions.yaml`, HTTP and the command line. Out: checked values, which the leader stores as
JSON; what they promise is P11 to P14.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from turnstile.common.action_definition import ActionDefinition, RateDefinition
from turnstile.common.fields import UNITS_MAX, WEIGHT_MAX, ActionRef, Pool, ResourceName

RANK_MAX: Final = 1_000_000
WEIGHTS_MAX: Final = 1000
"""Most actions with a weight in one pool."""


class ResourceDefinition(BaseModel):
    """Everything that defines a resource."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ResourceName = Field(description="The resource's name.")
    capacity: int | None = Field(
        default=None,
        ge=0,
        le=UNITS_MAX,
        description="Units that running executions may hold together; null: no limit; 0: nothing starts.",
    )
    rank: int | None = Field(
        default=None,
        ge=1,
        le=RANK_MAX,
        description="Position in the order in which executions acquire resources: the lowest first, those "
        "without a rank last, then by name. Give the scarcest resource the lowest rank.",
    )
    order: Literal["arrival", "fair"] = Field(
        default="arrival", description="Order between actions. fair: they take turns by weight."
    )
    rate: RateDefinition | None = Field(
        default=None, description="Limit of starts, over all actions, in any time of a given length."
    )
    paused: bool = Field(default=False, description="Start nothing that uses it.")


def _without_defaults(weights: dict[str, int]) -> dict[str, int]:
    return {ref: weight for ref, weight in sorted(weights.items()) if weight != 1}


class PoolDefinition(BaseModel):
    """The settings of a pool. Its capacity is the concurrency of its workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Pool = Field(description="The pool's name, as in the field `pool` of actions.")
    order: Literal["fair", "arrival"] = Field(
        default="fair",
        description="Order between the actions that wait for a worker. fair: they take turns by weight; "
        "arrival: the oldest execution is first.",
    )
    weights: Annotated[
        dict[ActionRef, Annotated[int, Field(ge=1, le=WEIGHT_MAX)]], AfterValidator(_without_defaults)
    ] = Field(
        default_factory=dict,
        max_length=WEIGHTS_MAX,
        description="Shares of actions with `order: fair`, by name: an action with weight 3 starts three "
        "executions while one with weight 1 starts one. Actions that are not named have weight 1.",
        examples=[{"reports.render": 3}],
    )
    paused: bool = Field(default=False, description="Start nothing in this pool.")


class KeySettings(BaseModel):
    """What one concurrency key has in place of its action's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_concurrent: int | None = Field(
        default=None,
        ge=0,
        le=UNITS_MAX,
        description="Limit of the key's queue; null: no limit; omitted: the action's limit.",
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=WEIGHT_MAX,
        description="The key's share of `max_concurrent_total` with `order: fair`.",
    )

    @model_validator(mode="after")
    def _sets_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("expected max_concurrent, weight or both, like {max_concurrent: 5}")
        return self

    @property
    def has_limit(self) -> bool:
        """Whether the key has a limit of its own."""
        return "max_concurrent" in self.model_fields_set


def key_columns(settings: KeySettings) -> dict[str, object]:
    """Return settings as the leader stores them."""
    return {
        "has_limit": settings.has_limit,
        "max_concurrent": settings.max_concurrent,
        "weight": settings.weight,
    }


def key_fields(settings: KeySettings) -> dict[str, Any]:
    """Return settings as users write them, without what is the default."""
    limit = {"max_concurrent": settings.max_concurrent} if settings.has_limit else {}
    return limit | ({} if settings.weight == 1 and limit else {"weight": settings.weight})


def problems_of_uses(
    definition: ActionDefinition, resources: Mapping[str, ResourceDefinition]
) -> Iterator[str]:
    """Yield a sentence for each use that the leader would refuse, with these resources."""
    ranked: dict[int, str] = {}
    for number, use in enumerate(definition.uses):
        resource = resources.get(use.resource)
        if resource is None:
            # The words of `leader.commands`.
            yield (
                f"uses.{number}: there is no resource {use.resource!r}; create it: executor resources put "
                f"{use.resource} --capacity NUMBER, or name it under resources: in the file that you apply"
            )
            continue
        if resource.capacity is not None and use.units > resource.capacity:
            yield (
                f"uses.{number}.units: {use.units} units are more than the capacity {resource.capacity} of "
                f"{use.resource!r}; take fewer units, or raise the capacity"
            )
        if (
            resource.rank is not None
            and (other := ranked.setdefault(resource.rank, use.resource)) != use.resource
        ):
            yield (
                f"uses.{number}: the resources {other!r} and {use.resource!r} have the same rank "
                f"{resource.rank}; give one of them another rank"
            )
