"""The routes of webhooks: list them, and replay them."""

from datetime import datetime
from typing import Annotated, Final, Literal, Self
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnstile.common.domain.errors import Code
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import JsonBody
from turnstile.executor.api.paging import ID_MAX, Page, Paging, page_before
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.queries.rows import page_of
from turnstile.executor.webhooks.sender import State

_REPLAYED_MAX: Final = 1000
_STATES: Final[tuple[State, ...]] = ("pending", "delivered", "failed")


class WebhookDetail(BaseModel):
    """The delivery of one ended execution to one URL."""

    execution_id: int = Field(examples=[2041])
    event_id: UUID = Field(description="`webhook-id`: the same in every attempt and replay.")
    action_ref: str | None = Field(description="Null if the execution was pruned.")
    execution_status: str | None = Field(examples=["completed"])
    url: str = Field(examples=["https://example.org/hooks/turnstile"])
    state: State = Field(description="failed: no more attempts; it can be replayed.")
    attempts: int = Field(description="POSTs since the execution ended, or since the last replay.")
    due_at: datetime = Field(description="Not before this instant.")
    claimed_until: datetime | None = Field(description="Until then a replica has claimed it.")
    last_status: int | None = Field(description="HTTP status of the last response; null: none.")
    last_error: str | None = Field(examples=["503 Service Unavailable: later"])
    created_at: datetime = Field(description="When the execution ended, or the last replay.")
    ended_at: datetime | None = Field(description="When it was delivered or failed.")


class WebhookListing(Paging):
    """Which webhooks to list."""

    state: list[State] | None = Field(default=None, description="Any of these; repeat it for several.")


class WebhookSelection(JsonBody):
    """Which webhooks to replay: exactly one of `ids` and `all`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": [2041]}, {"all": True}]})

    ids: (
        Annotated[list[Annotated[int, Field(ge=1, le=ID_MAX)]], Field(min_length=1, max_length=_REPLAYED_MAX)]
        | None
    ) = Field(default=None, description="Ids of executions whose webhooks were delivered or failed.")
    all: Literal[True] | None = Field(default=None, description="All failed ones, oldest first.")
    limit: int = Field(
        default=_REPLAYED_MAX, ge=1, le=_REPLAYED_MAX, description="Maximum number per call, with `all`."
    )
    dry_run: bool = Field(
        default=False,
        description="Change nothing. `left` is then the number of all webhooks that would be replayed.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.ids is None) == (self.all is None):
            raise ValueError('give exactly one of ids and all, like {"ids": [2041]} or {"all": true}')
        return self


class RefusedWebhook(BaseModel):
    """A webhook that was not replayed."""

    id: int
    reason: str


class WebhookReplay(BaseModel):
    """The result of a replay."""

    done: int = Field(description="Webhooks that are due again.")
    refused: list[RefusedWebhook] = Field(description="Webhooks that are still pending.")
    missing: list[int] = Field(description="Executions without a webhook, or that do not exist.")
    left: int = Field(description="Failed ones beyond the limit: repeat the call.")


routes = ApiRoutes(prefix="/webhooks", tag="operation")


@routes.get("", summary="List webhooks, the newest first")
async def get_webhooks(parts: Parts, query: Annotated[WebhookListing, Query()]) -> Page[WebhookDetail]:
    async def read(before_id: int, limit: int) -> tuple[list[WebhookDetail], int | None]:
        async with parts.limiter.permit():
            found = await parts.deliveries.page(query.state or _STATES, before_id=before_id, limit=limit + 1)
        return page_of(found, limit, lambda row: WebhookDetail(**row), lambda each: each.execution_id)

    return await page_before("webhooks", query, read)


@routes.post(
    "/replay",
    summary="Replay webhooks",
    description="At once, and with a fresh count of attempts. The event keeps its id: a receiver that "
    "has it already may ignore it.",
    responses=documented(Code.TOO_LARGE),
)
async def post_replay(parts: Parts, body: WebhookSelection, caller: CurrentCaller) -> WebhookReplay:
    if body.dry_run:
        async with parts.limiter.permit():
            replayed = await parts.deliveries.planned(body.ids)
    else:
        async with answer_deadline():
            replayed = await parts.deliveries.replay(body.ids, limit=body.limit, changed_by=caller)
    known = {*replayed.done, *replayed.pending}
    return WebhookReplay(
        done=0 if body.dry_run else len(replayed.done),
        refused=[RefusedWebhook(id=i, reason="it is pending") for i in sorted(replayed.pending)],
        missing=[i for i in dict.fromkeys(body.ids or ()) if i not in known],
        left=replayed.left,
    )
