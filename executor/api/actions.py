"""The routes of actions: define, change, pause, delete, and show their queues and changes."""

from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Query
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code
from turnstile.common.fields import PRIORITIES, check_ref
from turnstile.common.schemas import QueueStats
from turnstile.executor.api.bodies import DefinitionFields, StrictModel
from turnstile.executor.api.definition_routes import (
    Change,
    DefinitionKind,
    Texts,
    add_definition_routes,
)
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import Page, Paging, cursor_ids, cursor_of, invalid_cursor
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.dashboard.failures import EXAMINED_MAX, ActionFailures
from turnstile.executor.leader.commands import unknown
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.queue_reader import QueueStart
from turnstile.executor.queries.schemas import ActionDetail, ActionQueuePage, StoredAction

DELETED_WITH_MAX: Final = 10_000
"""Most waiting executions that are cancelled with their action in one call."""
_QUEUE_CURSOR: Final = "line"


class ActionFields(DefinitionFields):
    """Fields of a definition. The path names the action."""

    definition = ActionDefinition


_EXAMPLES: Final[dict[str, Example]] = {
    "command": {
        "summary": "At most two concurrent runs",
        "value": {"runner": "command", "entrypoint": ["wc", "-w"], "max_concurrent": 2, "timeout": "5m"},
    },
    "limit": {"summary": "Only a limit", "value": {"max_concurrent": 5}},
    "gates": {
        "summary": "Two for each customer, 20 in all, two units of a shared resource for each",
        "value": {
            "concurrency_key": "/customer/id",
            "max_concurrent": 2,
            "max_concurrent_total": 20,
            "order": "fair",
            "rate": {"starts": 10, "per": "1s"},
            "uses": [{"resource": "autocad", "units": 2}, "partner-api"],
        },
    },
}


class QueueListing(Paging):
    """Which part of the queues of an action to list."""

    concurrency_key: FilterText | None = Field(default=None, description="Only the queue of this key.")


class DeletionParameters(StrictModel):
    """What happens to waiting executions."""

    waiting: Literal["refuse", "cancel"] = Field(
        default="refuse",
        description="refuse: an action with waiting executions is not deleted; cancel: they are cancelled.",
    )


class ActionDeleted(BaseModel):
    """The action was deleted; its executions stay in the history."""

    action_ref: str = Field(examples=["reports.render"])
    cancelled: int = Field(description="Waiting executions that were cancelled with it.")


ACTIONS: Final[DefinitionKind[ActionDetail]] = DefinitionKind(
    name="action",
    noun="an action",
    named_by="ref",
    check=check_ref,
    example="reports.render",
    fields=ActionFields,
    examples=_EXAMPLES,
    stored=ActionDetail,
    page=Page[StoredAction],
    find=DefinitionReader.action,
    list_after=lambda reader, after, limit, scope: reader.actions(after_ref=after, limit=limit, scope=scope),
    texts=Texts(
        all="List actions by name",
        read="Read an action",
        put="Replace the definition of an action; a changed limit takes effect at once",
        patch="Change fields of an action; a changed limit takes effect at once",
        pause="Pause an action: its requests are accepted, and nothing starts",
        changes="Each with who, when and what: limit, pause and all other fields, creation and deletion; "
        "stored in the transaction of the change. The changes of a deleted action stay.",
        more={
            "read": "With the schemas that its workers derived from their code; the `ETag` is that of "
            "the definition alone."
        },
    ),
)
PossibleRef: TypeAlias = Annotated[str, ACTIONS.existing]

routes = ApiRoutes(prefix="/actions", tag="actions")
add_definition_routes(routes, ACTIONS)


@routes.delete(
    "/{ref}",
    summary="Delete an action, with or without waiting executions",
    description="Its executions stay in the history. It is never deleted while one of them runs.",
    responses=documented(Code.NOT_FOUND, Code.IN_USE, Code.PRECONDITION_FAILED),
)
async def delete_action(
    ref: PossibleRef,
    query: Annotated[DeletionParameters, Query()],
    change: Change,
) -> ActionDeleted:
    cancel_max = DELETED_WITH_MAX if query.waiting == "cancel" else 0
    deleted = await change.decide("action", ref, None, cancel_max=cancel_max)
    return ActionDeleted(action_ref=ref, cancelled=deleted["cancelled"])


@routes.get(
    "/{ref}/queue-stats",
    summary="Get queue statistics of an action, at one instant",
    responses=documented(Code.NOT_FOUND),
)
async def get_queue_stats(parts: Parts, ref: PossibleRef) -> QueueStats:
    found = await parts.queues.queue_stats(ref)
    if found is None:
        raise unknown("action", ref)
    return found


@routes.get(
    "/{ref}/failures",
    summary="Group the latest failures of an action by their error",
    description="Of each message, texts in quotes and words with digits count as equal. Failures are "
    f"counted among its {EXAMINED_MAX} newest executions, and as many before the heads of some queues.",
    responses=documented(Code.NOT_FOUND),
)
async def get_failures(parts: Parts, ref: PossibleRef) -> ActionFailures:
    if await parts.definitions.action_id(ref) is None:
        raise unknown("action", ref)
    return await parts.live.errors(ref)


@routes.get(
    "/{ref}/queue",
    summary="List the queue of an action, in order, and its slot holders",
    responses=documented(Code.NOT_FOUND),
)
async def get_queue(
    parts: Parts, ref: PossibleRef, query: Annotated[QueueListing, Query()]
) -> ActionQueuePage:
    start = _queue_start(query.cursor)
    found = await parts.queues.queue(
        ref, concurrency_key=query.concurrency_key, start=start, limit=query.limit
    )
    if found is None:
        raise unknown("action", ref)
    shown, last = found
    cursor = None if last is None else cursor_of(_QUEUE_CURSOR, *last)
    return shown.model_copy(update={"next_cursor": cursor})


def _queue_start(cursor: str | None) -> QueueStart:
    if cursor is None:
        return QueueStart()
    start = QueueStart(*cursor_ids(_QUEUE_CURSOR, cursor, count=2))
    if start.priority not in PRIORITIES:
        raise invalid_cursor()
    return start
