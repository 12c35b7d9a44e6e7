"""`GET /attention`: what needs an operator's attention, a card for each fault."""

from datetime import timedelta
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from turnstile.common.fields import Duration
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.bodies import StrictModel
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes
from turnstile.executor.api_tokens import is_in_scope
from turnstile.executor.dashboard.cards import Card


class AttentionParameters(StrictModel):
    """When waiting needs attention."""

    waited: Duration = Field(
        default=60.0,
        description="Work that waits for a full resource, rate, total or pool is named after this time.",
    )


class Attention(BaseModel):
    """What needs attention, the worst first; empty when all is well."""

    items: list[Card]


routes = ApiRoutes(tag="operation")


@routes.get(
    "/attention",
    summary="List what needs attention, the worst first, each with the command that mends it",
    description="Empty when all is well. docs/runbook.md has a section for each kind. "
    "A token that is limited to some actions gets the cards of these.",
)
async def get_attention(
    parts: Parts, query: Annotated[AttentionParameters, Query()], scope: CallerScope
) -> Attention:
    found = await parts.live.cards(timedelta(seconds=query.waited))
    if scope is not None:
        found = [each for each in found if each.action_ref and is_in_scope(each.action_ref, scope)]
    return Attention(items=found)
