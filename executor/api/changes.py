"""The route of changes: what was done to an action, by whom and when."""

from typing import Annotated

from fastapi import APIRouter, Query

from turnstile.common.domain.errors import Code
from turnstile.executor.api.definitions import PossibleRef, unknown_action
from turnstile.executor.api.paging import Page, Paging, cursor_of, ticket_of
from turnstile.executor.api.problems import documented
from turnstile.executor.reading import ActionChangeShape, Reader

_CURSOR = "changes"


def add_changes_route(routes: APIRouter, reader: Reader) -> None:
    """Add the route to those of actions."""

    @routes.get(
        "/{ref}/changes",
        summary="What was done to it, by whom and when; newest first",
        description="Limit, pause and every other field, creation and deletion; noted in the transaction of "
        "the change. Those of a deleted action stay.",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_changes(ref: PossibleRef, asked: Annotated[Paging, Query()]) -> Page[ActionChangeShape]:
        before_id = ticket_of(_CURSOR, asked.cursor)
        items, rest = await reader.changes(ref, before_id=before_id, limit=asked.limit)
        if not items and before_id is None and await reader.action(ref) is None:
            raise unknown_action(ref)
        return Page(items=items, next_cursor=None if rest is None else cursor_of(_CURSOR, rest))
