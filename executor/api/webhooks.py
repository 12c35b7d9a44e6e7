"""The routes of webhooks: see what became of them, and have them posted once more."""

from datetime import datetime
from typing import Annotated, Final, Literal, Self
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnstile.common.database import Database
from turnstile.common.domain.errors import Code
from turnstile.common.requests import read_model
from turnstile.executor.api.bodies import read_value
from turnstile.executor.api.paging import Page, Paging, cursor_of, ticket_of
from turnstile.executor.api.problems import documented
from turnstile.executor.api.requested import requested_body
from turnstile.executor.api.services import answer_deadline
from turnstile.executor.reading.turns import ReadingTurns
from turnstile.executor.webhooks.judgement import State
from turnstile.executor.webhooks.record import WebhookRecord

_CURSOR: Final = "webhooks"
_ID_MAX: Final = 2**63 - 1
_AT_ONCE_MAX: Final = 1000
_STATES: Final[tuple[State, ...]] = ("pending", "delivered", "failed")


class WebhookShape(BaseModel):
    """The end of one execution, on its way to one URL."""

    execution_id: int = Field(examples=[2041])
    event_id: UUID = Field(description="`webhook-id`: the same in every attempt, and in a replay.")
    action_ref: str | None = Field(description="Null where the execution was pruned.")
    execution_status: str | None = Field(examples=["completed"])
    url: str = Field(examples=["https://example.org/hooks/turnstile"])
    state: State = Field(description="failed: given up; it can be replayed.")
    attempts: int = Field(description="POSTs since its end, or since it was last replayed.")
    due_at: datetime = Field(description="Not before this instant.")
    claimed_until: datetime | None = Field(description="Until then a replica has it in hand.")
    last_status: int | None = Field(description="HTTP status of the last answer; null: there was none.")
    last_error: str | None = Field(examples=["503 Service Unavailable: later"])
    created_at: datetime = Field(description="Its end, or its last replay.")
    settled_at: datetime | None = Field(description="When it was delivered, or given up.")


class WebhookListing(Paging):
    """Which webhooks to list."""

    state: list[State] | None = Field(default=None, description="Any of these; repeat it for several.")


class WebhookSelection(BaseModel):
    """Which webhooks are meant: exactly one of `ids` and `all`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"ids": [2041]}, {"all": True}]}
    )

    ids: (
        Annotated[list[Annotated[int, Field(ge=1, le=_ID_MAX)]], Field(min_length=1, max_length=_AT_ONCE_MAX)]
        | None
    ) = Field(default=None, description="Ids of executions, whose webhooks were delivered or have failed.")
    all: Literal[True] | None = Field(default=None, description="All that have failed, the oldest first.")
    limit: int = Field(default=_AT_ONCE_MAX, ge=1, le=_AT_ONCE_MAX, description="Most at once, with `all`.")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.ids is None) == (self.all is None):
            raise ValueError('give exactly one of ids and all, like {"ids": [2041]} or {"all": true}')
        return self


class RefusedWebhook(BaseModel):
    """A webhook that stays as it is."""

    id: int
    reason: str


class ReplayedShape(BaseModel):
    """What became of the webhooks that were meant."""

    done: int = Field(description="Webhooks that are due once more.")
    refused: list[RefusedWebhook] = Field(description="Webhooks that are pending in any case.")
    missing: list[int] = Field(description="Executions that have no webhook, or are not in the record.")
    left: int = Field(description="Failed ones that are left: ask again.")


def webhook_routes(database: Database, turns: ReadingTurns) -> APIRouter:
    """Return the routes of webhooks."""
    routes = APIRouter(prefix="/webhooks", tags=["operation"])
    record = WebhookRecord(database)

    @routes.get("", summary="List webhooks, the newest first", responses=documented(Code.UNKNOWN_FIELD))
    async def get_webhooks(asked: Annotated[WebhookListing, Query()]) -> Page[WebhookShape]:
        before_id = ticket_of(_CURSOR, asked.cursor) or _ID_MAX
        async with turns.one():
            found = await record.page(asked.state or _STATES, before_id=before_id, limit=asked.limit + 1)
        items = [WebhookShape.model_validate(row) for row in found[: asked.limit]]
        has_more = len(found) > asked.limit
        return Page(items=items, next_cursor=cursor_of(_CURSOR, items[-1].execution_id) if has_more else None)

    @routes.post(
        "/replay",
        summary="Have webhooks posted once more",
        description="At once, and with all attempts before them. The event keeps its id: a receiver that "
        "has it already may leave it at that.",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("WebhookSelection"),
    )
    async def post_replay(request: Request) -> ReplayedShape:
        asked = read_model(WebhookSelection, await read_value(request))
        async with answer_deadline():
            replayed = await record.replay(asked.ids, limit=asked.limit)
        known = {*replayed.done, *replayed.pending}
        return ReplayedShape(
            done=len(replayed.done),
            refused=[RefusedWebhook(id=i, reason="it is pending") for i in sorted(replayed.pending)],
            missing=[i for i in dict.fromkeys(asked.ids or ()) if i not in known],
            left=replayed.left,
        )

    return routes
