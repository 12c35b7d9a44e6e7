"""The routes of actions: define, change, pause, delete, and show their queues and changes.

A change reads the definition, changes it, checks it as a whole and stores it; one at a time for each action,
over all executors, so that no change undoes another. Requests may be conditional (RFC 9110, section 13):
`If-Match` and `If-None-Match` are checked under the same lock. Who changed what is stored in the transaction
of the change.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Depends, Path, Query, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.fields import PRIORITIES, check_ref
from turnstile.common.requests import read_model
from turnstile.common.schemas import QueueStats
from turnstile.executor.api.auth import CallerScope
from turnstile.executor.api.bodies import DefinitionFields, JsonRoute, StrictModel
from turnstile.executor.api.conditions import (
    TAGGED,
    ConditionalCaller,
    CurrentConditionalCaller,
    IfNoneMatch,
    check_match,
    tag_of,
    tags_in,
)
from turnstile.executor.api.executions import FilterText
from turnstile.executor.api.paging import (
    ID_MAX,
    Page,
    Paging,
    cursor_id,
    cursor_ids,
    cursor_of,
    cursor_parts,
    invalid_cursor,
    next_cursor,
)
from turnstile.executor.api.problems import answer, answer_deadline, documented, problem
from turnstile.executor.operations import Operations
from turnstile.executor.queries.reader import PLACE_ID_MAX, LineStart, Reader
from turnstile.executor.queries.schemas import ActionDetail, ActionQueuePage, ChangeEntry, StoredAction
from turnstile.executor.results import Deletion

DELETED_WITH_MAX: Final = 10_000
"""Most waiting executions that are cancelled with their action in one call."""
_CURSOR: Final = "actions"
_QUEUE_CURSOR: Final = "line"
_CHANGES_CURSOR: Final = "changes"
RefPath = Annotated[str, Path(description="The action's name.", examples=["reports.render"])]


async def _possible_ref(ref: RefPath) -> str:
    try:
        return check_ref(ref)
    except ValueError:
        raise unknown_action(ref) from None


PossibleRef = Annotated[str, Depends(_possible_ref)]
"""The ref in a path; a name that no action can have is answered with 404."""


class ActionFields(DefinitionFields):
    """Fields of a definition. The path names the action."""

    definition = ActionDefinition


_FIELDS_EXAMPLES: Final[dict[str, Example]] = {
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
GivenFields = Annotated[ActionFields, Body(openapi_examples=_FIELDS_EXAMPLES)]


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


class Definitions:
    """Reads and writes definitions. Safe to share between tasks."""

    def __init__(self, database: Database, operations: Operations, reader: Reader) -> None:
        self._database = database
        self._operations = operations
        self._reader = reader
        self._writing = asyncio.Lock()

    async def read(self, ref: str) -> ActionDetail:
        """Return an action; raises Refusal if it does not exist."""
        found = await self._reader.action_detail(ref)
        if found is None:
            raise unknown_action(ref)
        return found

    async def put(
        self,
        ref: str,
        given: Mapping[str, Any],
        caller: ConditionalCaller,
        *,
        if_none_match: str | None = None,
    ) -> ActionDetail:
        """Store a whole definition: absent fields get their defaults."""
        if given.get("ref", ref) != ref:
            raise Refusal(Code.INVALID_MESSAGE, f"ref: differs from the path; omit it, or send {ref!r}")
        definition = read_model(ActionDefinition, {**given, "ref": ref})
        async with answer_deadline(), self._one_at_a_time(ref):
            if caller.if_match is not None or if_none_match is not None:
                stored = await self._reader.action(ref)
                check_match(caller.if_match, None if stored is None else _tag(stored), "action")
                _check_none_match(if_none_match, stored)
            await self._store(definition, caller)
            return await self.read(ref)

    async def change(self, ref: str, given: Mapping[str, Any], caller: ConditionalCaller) -> ActionDetail:
        """Change some fields of a definition and keep the others."""
        if given.get("ref", ref) != ref:
            raise Refusal(Code.INVALID_MESSAGE, "ref: the name of an action never changes; omit it")
        async with answer_deadline(), self._one_at_a_time(ref):
            found = await self.read(ref)
            check_match(caller.if_match, _tag(found), "action")
            stored = found.model_dump(include=set(ActionDefinition.model_fields))
            merged = {**stored, **given}
            if isinstance(retry := given.get("retry"), Mapping):
                merged["retry"] = {**stored["retry"], **retry}
            await self._store(read_model(ActionDefinition, merged), caller)
            return await self.read(ref)

    async def delete(self, ref: str, caller: ConditionalCaller, *, with_waiting: bool) -> Deletion:
        """Delete an action, if none of its executions runs and, unless `with_waiting`, none waits.

        The result shows whether it was deleted.
        """
        async with answer_deadline(), self._one_at_a_time(ref):
            check_match(caller.if_match, _tag(await self.read(ref)), "action")
            cancel_max = DELETED_WITH_MAX if with_waiting else 0
            deletion = await self._operations.delete_action(ref, cancel_max, caller.who)
        if deletion is None:
            raise unknown_action(ref)
        return deletion

    async def _store(self, definition: ActionDefinition, caller: ConditionalCaller) -> None:
        try:
            await self._operations.put_actions([definition], caller.who)
        except REFUSED_BY_DATABASE as error:
            raise Refusal(Code.INVALID_MESSAGE, f"the database refuses it: {error}") from None

    @asynccontextmanager
    async def _one_at_a_time(self, ref: str) -> AsyncIterator[None]:
        # The local lock comes first, so that this executor holds one connection at most while it waits.
        async with self._writing, self._database.transaction() as connection:
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('turnstile.action.' || $1, 0))", ref
            )
            yield


def action_routes(database: Database, operations: Operations, reader: Reader) -> APIRouter:
    """Return the routes of actions."""
    routes = APIRouter(prefix="/actions", tags=["actions"], route_class=JsonRoute)
    definitions = Definitions(database, operations, reader)
    _add_reading_routes(routes, definitions, reader)
    _add_changing_routes(routes, definitions)
    _add_deleting_route(routes, definitions)
    _add_queue_routes(routes, definitions, reader)
    return routes


def _add_reading_routes(routes: APIRouter, definitions: Definitions, reader: Reader) -> None:
    @routes.get("", summary="List actions by name", responses=documented(Code.UNKNOWN_FIELD))
    async def get_actions(query: Annotated[Paging, Query()], scope: CallerScope) -> Page[StoredAction]:
        after = None if query.cursor is None else cursor_parts(_CURSOR, query.cursor, count=1)[0]
        items, last = await reader.actions(after_ref=after, limit=query.limit, scope=scope)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, last))

    @routes.get(
        "/{ref}",
        summary="Read one action",
        responses={
            **TAGGED,
            304: {"description": "The action still has the `ETag` of `If-None-Match`"},
            **documented(Code.NOT_FOUND),
        },
        description="With the schemas that its workers derived from their code; the `ETag` is that of the "
        "definition alone.",
        response_model=ActionDetail,
    )
    async def get_action(ref: PossibleRef, response: Response, if_none_match: IfNoneMatch = None) -> Any:
        action = await definitions.read(ref)
        if _is_unchanged(if_none_match, action):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": _tag(action)})
        return _tagged(action, response)

    @routes.get(
        "/{ref}/changes",
        summary="List its changes: who, when and what; newest first",
        description="Limit, pause and every other field, creation and deletion; stored in the transaction of "
        "the change. Those of a deleted action stay.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(ref: PossibleRef, query: Annotated[Paging, Query()]) -> Page[ChangeEntry]:
        before_id = cursor_id(_CHANGES_CURSOR, query.cursor, first=ID_MAX)
        items, last = await reader.changes(ref, before_id=before_id, limit=query.limit)
        if not items and query.cursor is None:
            await definitions.read(ref)
        return Page(items=items, next_cursor=next_cursor(_CHANGES_CURSOR, last))


def _add_changing_routes(routes: APIRouter, definitions: Definitions) -> None:
    changes = documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED)
    switches = documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)

    @routes.put(
        "/{ref}",
        summary="Store a whole definition; a changed limit takes effect at once",
        responses={**TAGGED, **changes},
    )
    async def put_action(
        ref: RefPath,
        fields: GivenFields,
        caller: CurrentConditionalCaller,
        response: Response,
        if_none_match: IfNoneMatch = None,
    ) -> ActionDetail:
        stored = await definitions.put(ref, fields.given, caller, if_none_match=if_none_match)
        return _tagged(stored, response)

    @routes.patch(
        "/{ref}",
        summary="Change some fields; a changed limit takes effect at once",
        responses={**TAGGED, **documented(Code.NOT_FOUND), **changes},
    )
    async def patch_action(
        ref: PossibleRef, fields: GivenFields, caller: CurrentConditionalCaller, response: Response
    ) -> ActionDetail:
        return _tagged(await definitions.change(ref, fields.given, caller), response)

    @routes.post("/{ref}/pause", summary="Admit, but grant no slots", responses={**TAGGED, **switches})
    async def post_pause(
        ref: PossibleRef, caller: CurrentConditionalCaller, response: Response
    ) -> ActionDetail:
        return _tagged(await definitions.change(ref, {"paused": True}, caller), response)

    @routes.post("/{ref}/resume", summary="Grant slots again", responses={**TAGGED, **switches})
    async def post_resume(
        ref: PossibleRef, caller: CurrentConditionalCaller, response: Response
    ) -> ActionDetail:
        return _tagged(await definitions.change(ref, {"paused": False}, caller), response)


def _add_deleting_route(routes: APIRouter, definitions: Definitions) -> None:
    @routes.delete(
        "/{ref}",
        summary="Delete it, with or without executions that wait",
        description="Its executions stay in the history. It is never deleted while one of them runs.",
        responses=documented(Code.NOT_FOUND, Code.IN_USE, Code.PRECONDITION_FAILED, Code.UNKNOWN_FIELD),
        response_model=ActionDeleted,
    )
    async def delete_action(
        ref: PossibleRef, query: Annotated[DeletionParameters, Query()], caller: CurrentConditionalCaller
    ) -> Any:
        with_waiting = query.waiting == "cancel"
        deletion = await definitions.delete(ref, caller, with_waiting=with_waiting)
        if deletion.deleted:
            return ActionDeleted(action_ref=ref, cancelled=len(deletion.ended))
        detail = _in_use(ref, deletion, with_waiting=with_waiting)
        return answer(problem(Code.IN_USE, detail, waiting=deletion.waiting, running=deletion.running))


def _add_queue_routes(routes: APIRouter, definitions: Definitions, reader: Reader) -> None:
    @routes.get(
        "/{ref}/queue-stats",
        summary="The state of its queues at one instant",
        responses=documented(Code.NOT_FOUND),
    )
    async def get_queue_stats(ref: PossibleRef) -> QueueStats:
        found = await reader.queue_stats(ref)
        if found is None:
            raise unknown_action(ref)
        return found

    @routes.get(
        "/{ref}/queue",
        summary="List its queued executions, in order, and its slot holders",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_queue(ref: PossibleRef, query: Annotated[QueueListing, Query()]) -> ActionQueuePage:
        await definitions.read(ref)
        start = _line_start(query.cursor)
        shown, last = await reader.queue(
            ref, concurrency_key=query.concurrency_key, start=start, limit=query.limit
        )
        cursor = None if last is None else cursor_of(_QUEUE_CURSOR, *last)
        return shown.model_copy(update={"next_cursor": cursor})


def _line_start(cursor: str | None) -> LineStart:
    if cursor is None:
        return LineStart()
    start = LineStart(*cursor_ids(_QUEUE_CURSOR, cursor, count=2))
    if start.priority not in PRIORITIES or start.id > PLACE_ID_MAX:
        raise invalid_cursor()
    return start


def unknown_action(ref: str) -> Refusal:
    """Refuse a request about an action that does not exist."""
    return Refusal(
        Code.NOT_FOUND, f"ref: there is no action {ref[:200]!r}; PUT it, or start a worker that serves it"
    )


def _in_use(ref: str, deletion: Deletion, *, with_waiting: bool) -> str:
    bulk = f'POST /api/v1/executions/cancel with {{"filter": {{"action_ref": "{ref}"}}}}'
    if deletion.running:
        return (
            f"ref: {deletion.running} executions of {ref!r} run and {deletion.waiting} wait; wait until they "
            f"have ended, or cancel them: {bulk}"
        )
    if with_waiting:
        return (
            f"waiting: {deletion.waiting} executions of {ref!r} wait, at most {DELETED_WITH_MAX} are "
            f"cancelled with their action; cancel them first: {bulk}"
        )
    return (
        f"waiting: {deletion.waiting} executions of {ref!r} wait; send ?waiting=cancel to cancel them, or "
        "wait until they have run"
    )


def _tag(action: StoredAction) -> str:
    return tag_of(action, StoredAction)


def _tagged(action: ActionDetail, response: Response) -> ActionDetail:
    response.headers["ETag"] = _tag(action)
    return action


def _check_none_match(if_none_match: str | None, action: StoredAction | None) -> None:
    """Raise Refusal if `If-None-Match` names the state of the action; `*`: if it exists."""
    if action is not None and _is_unchanged(if_none_match, action):
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-None-Match: the action {action.ref!r} exists; omit the header to replace it",
        )


def _is_unchanged(if_none_match: str | None, action: StoredAction) -> bool:
    if if_none_match is None:
        return False
    tags = {tag.removeprefix("W/") for tag in tags_in(if_none_match)}
    return "*" in tags or _tag(action) in tags
