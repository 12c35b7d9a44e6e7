"""What the routes of actions, resources and pools have in common: changes under conditions, and histories.

In: names, and the fields, headers and cursors of requests. Out: what is stored, with its `ETag` in the
response.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from fastapi import Response
from pydantic import BaseModel

from turnstile.common.domain.errors import Code
from turnstile.executor.api.conditions import TAGGED, ConditionalCaller, tag_of
from turnstile.executor.api.paging import ID_MAX, Page, Paging, cursor_id, next_cursor
from turnstile.executor.api.problems import documented
from turnstile.executor.definition_store import DefinitionStore
from turnstile.executor.queries.reader import Reader
from turnstile.executor.queries.schemas import ChangeEntry, SubjectKind

Stored = TypeVar("Stored", bound=BaseModel)

CHANGED: Final = {**TAGGED, **documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED)}
"""Responses of a route that takes fields of a definition."""
SWITCHED: Final = {**TAGGED, **documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)}
"""Responses of a route that pauses or resumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedDefinitions(Generic[Stored]):
    """Definitions of one kind; each one that is returned puts its `ETag` into the response."""

    subject: SubjectKind
    store: DefinitionStore[Any, Stored]
    model: type[BaseModel]
    """The `ETag` changes with each of its fields."""
    changes_cursor: str
    """The kind of the cursors of a history."""

    async def read(self, name: str, response: Response) -> Stored:
        """Return what is stored under a name; raises Refusal if nothing is."""
        return self._tagged(await self.store.read(name), response)

    async def put(
        self,
        name: str,
        given: Mapping[str, Any],
        caller: ConditionalCaller,
        response: Response,
        *,
        if_none_match: str | None = None,
    ) -> Stored:
        """Store a whole definition, if it is in the state that the headers name."""
        check = caller.check(self.model, self.subject, if_none_match=if_none_match)
        return self._tagged(await self.store.put(name, given, caller.who, check=check), response)

    async def change(
        self, name: str, given: Mapping[str, Any], caller: ConditionalCaller, response: Response
    ) -> Stored:
        """Change some fields of a definition, if it is in the state that the headers name."""
        check = caller.check(self.model, self.subject)
        return self._tagged(await self.store.change(name, given, caller.who, check=check), response)

    async def changes(self, name: str, reader: Reader, query: Paging) -> Page[ChangeEntry]:
        """Return changes, newest first; raises Refusal if there are none and the name is unknown."""
        before_id = cursor_id(self.changes_cursor, query.cursor, first=ID_MAX)
        items, last = await reader.changes(self.subject, name, before_id=before_id, limit=query.limit)
        if not items and query.cursor is None:
            await self.store.read(name)
        return Page(items=items, next_cursor=next_cursor(self.changes_cursor, last))

    def _tagged(self, stored: Stored, response: Response) -> Stored:
        response.headers["ETag"] = tag_of(stored, self.model)
        return stored
