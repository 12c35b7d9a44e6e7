"""What the routes of actions, resources and pools have in common: changes under conditions, and histories.

In: names, and the fields, headers and cursors of requests. Out: what is stored, with its `ETag` in the
response. A change is a command: durable at once, merged, checked and recorded in one turn of the leader, so
changes of one definition over all executors undo none of each other.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from fastapi import Response
from pydantic import BaseModel

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.conditions import TAGGED, ConditionalCaller
from turnstile.executor.api.paging import ID_MAX, Page, Paging, cursor_id, next_cursor
from turnstile.executor.api.problems import documented
from turnstile.executor.callers import Caller
from turnstile.executor.inbox import Answer, Inbox, refusal_of
from turnstile.executor.leader.commands import unknown
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.queries.definition_reader import DefinitionReader, Tagged
from turnstile.executor.queries.schemas import ChangeEntry

Stored = TypeVar("Stored", bound=BaseModel)
Kind = Literal["action", "resource", "pool"]

CHANGED: Final = {**TAGGED, **documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE, Code.PRECONDITION_FAILED)}
"""Responses of a route that takes fields of a definition."""
SWITCHED: Final = {**TAGGED, **documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)}
"""Responses of a route that pauses or resumes."""


async def decided(inbox: Inbox, command: DefinitionCommand) -> Answer:
    """Have a change decided. Raises Refusal, but returns why something is in use; raises Unavailable."""
    async with answer_deadline():
        (answer,) = await inbox.decide([command])
    refusal = refusal_of(answer)
    if refusal is not None and refusal.code is not Code.IN_USE:
        raise refusal
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions(Generic[Stored]):
    """Definitions of one kind; each one that is returned puts its `ETag` into the response."""

    kind: Kind
    noun: str
    """With its article."""
    model: type[BaseModel]
    name_field: str
    inbox: Inbox
    find: Callable[[str], Awaitable[Tagged[Stored] | None]]
    changes_cursor: str
    """The kind of the cursors of a history."""

    async def read(self, name: str, response: Response) -> Stored:
        """Return what is stored under a name; raises Refusal if nothing is."""
        found = await self.find(name)
        if found is None:
            raise unknown(self.kind, name)
        response.headers["ETag"] = found.tag
        return found.stored

    async def put(
        self,
        name: str,
        given: Mapping[str, Any],
        caller: ConditionalCaller,
        response: Response,
        *,
        if_none_match: str | None = None,
    ) -> Stored:
        """Store a whole definition: absent fields get their defaults."""
        self._check_name(name, given, f"differs from the path; omit it, or send {name!r}")
        definition = read_model(self.model, {**given, self.name_field: name}).model_dump(mode="json")
        command = DefinitionCommand(
            kind=self.kind, name=name, definition=definition, if_match=caller.if_match,
            if_none_match=if_none_match, changed_by=caller.who._asdict(),
        )  # fmt: skip
        await decided(self.inbox, command)
        return await self.read(name, response)

    async def change(
        self, name: str, given: Mapping[str, Any], caller: ConditionalCaller, response: Response
    ) -> Stored:
        """Change some fields of a definition and keep the others; so also inside `retry` and `weights`."""
        self._check_name(name, given, f"the name of {self.noun} never changes; omit it")
        command = DefinitionCommand(
            kind=self.kind, name=name, definition=given, is_patch=True, if_match=caller.if_match,
            changed_by=caller.who._asdict(),
        )  # fmt: skip
        await decided(self.inbox, command)
        return await self.read(name, response)

    async def delete(
        self, name: str, who: Caller, *, if_match: str | None = None, cancel_max: int = 0
    ) -> Answer:
        """Delete a definition; the answer says so, or why it is in use."""
        command = DefinitionCommand(
            kind=self.kind, name=name, definition=None, if_match=if_match, cancel_max=cancel_max,
            changed_by=who._asdict(),
        )  # fmt: skip
        return await decided(self.inbox, command)

    async def changes(self, name: str, reader: DefinitionReader, query: Paging) -> Page[ChangeEntry]:
        """Return changes, newest first; raises Refusal if there are none and the name is unknown."""
        before_id = cursor_id(self.changes_cursor, query.cursor, first=ID_MAX)
        items, last = await reader.changes(self.kind, name, before_id=before_id, limit=query.limit)
        if not items and query.cursor is None and await self.find(name) is None:
            raise unknown(self.kind, name)
        return Page(items=items, next_cursor=next_cursor(self.changes_cursor, last))

    def _check_name(self, name: str, given: Mapping[str, Any], sentence: str) -> None:
        if given.get(self.name_field, name) != name:
            raise Refusal(Code.INVALID_MESSAGE, f"{self.name_field}: {sentence}")
