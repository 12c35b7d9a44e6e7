"""Stores and changes definitions of actions for the routes.

In: JSON values. Out: the action as it is stored then. A change reads the definition, changes it, checks it as
a whole and stores it: one at a time for each action, over all executors, so that no change undoes another.
Who changed what is noted in the transaction of the change.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Request

from turnstile.common.action_definition import ActionDefinition, check_ref
from turnstile.common.database import REFUSED_BY_DATABASE
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.preconditions import IfMatch, check_match, check_none_match
from turnstile.executor.api.services import ApiServices, answer_deadline
from turnstile.executor.decisions import Deletion
from turnstile.executor.reading import ActionShape, Reader

DELETED_WITH_MAX: Final = 10_000
"""Most waiting executions that end with their action in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Who asks for a change, and which state it wants to change."""

    changed_by: str
    if_match: str | None


async def _asking(request: Request, if_match: IfMatch = None) -> Asking:
    name: str | None = getattr(request.state, "bearer_name", None)
    return Asking(changed_by="local" if name is None else name, if_match=if_match)


AskingNow = Annotated[Asking, Depends(_asking)]


class Definitions:
    """Reads and writes definitions. Safe to share between tasks."""

    def __init__(self, services: ApiServices, reader: Reader) -> None:
        self._services = services
        self._reader = reader
        self._writing = asyncio.Lock()

    async def read(self, ref: str) -> ActionShape:
        """Return an action; raises Refusal where there is none."""
        found = await self._reader.action(ref)
        if found is None:
            raise unknown_action(ref)
        return found

    async def put(
        self, ref: str, value: Any, asking: Asking, *, if_none_match: str | None = None
    ) -> ActionShape:
        """Store a whole definition: fields that are left out get their defaults."""
        if isinstance(value, Mapping) and value.get("ref", ref) != ref:
            raise Refusal(Code.INVALID_MESSAGE, f"ref: differs from the path; leave it out, or send {ref!r}")
        definition = read_model(
            ActionDefinition, {**value, "ref": ref} if isinstance(value, Mapping) else value
        )
        async with answer_deadline(), self._one_at_a_time(ref):
            if asking.if_match is not None or if_none_match is not None:
                stored = await self._reader.action(ref)
                check_match(asking.if_match, stored)
                check_none_match(if_none_match, stored)
            await self._store(definition, asking)
            return await self.read(ref)

    async def change(self, ref: str, value: Any, asking: Asking) -> ActionShape:
        """Change some fields of a definition and keep the others."""
        if isinstance(value, Mapping) and value.get("ref", ref) != ref:
            raise Refusal(Code.INVALID_MESSAGE, "ref: the name of an action never changes; leave it out")
        if not isinstance(value, Mapping):
            read_model(ActionDefinition, value)
        async with answer_deadline(), self._one_at_a_time(ref):
            found = await self.read(ref)
            check_match(asking.if_match, found)
            stored = _definition_fields(found)
            retry = value.get("retry")
            merged = {**stored, **value}
            if isinstance(retry, Mapping):
                merged["retry"] = {**stored["retry"], **retry}
            await self._store(read_model(ActionDefinition, merged), asking)
            return await self.read(ref)

    async def delete(self, ref: str, asking: Asking, *, with_waiting: bool) -> Deletion:
        """Delete an action, if nothing of it runs and, but `with_waiting`, nothing waits.

        `deleted` says whether it came to that.
        """
        async with answer_deadline(), self._one_at_a_time(ref):
            check_match(asking.if_match, await self.read(ref))
            cancel_max = DELETED_WITH_MAX if with_waiting else 0
            deletion = await self._services.delete_action(ref, cancel_max, asking.changed_by)
        if deletion is None:
            raise unknown_action(ref)
        return deletion

    async def _store(self, definition: ActionDefinition, asking: Asking) -> None:
        try:
            await self._services.put_actions([definition], asking.changed_by)
        except REFUSED_BY_DATABASE as error:
            raise Refusal(Code.INVALID_MESSAGE, f"the database refuses it: {error}") from None

    @asynccontextmanager
    async def _one_at_a_time(self, ref: str) -> AsyncIterator[None]:
        # Locked here first, so that this executor holds at most one connection while it waits for another.
        async with self._writing, self._services.database.transaction() as connection:
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('turnstile.action.' || $1, 0))", ref
            )
            yield


def unknown_action(ref: str) -> Refusal:
    """Refuse a path that names no action."""
    return Refusal(
        Code.NOT_FOUND, f"ref: there is no action {ref[:200]!r}; PUT it, or start a worker that serves it"
    )


def can_name_an_action(ref: str) -> bool:
    """Tell whether an action could have this name."""
    try:
        check_ref(ref)
    except ValueError:
        return False
    return True


def _definition_fields(action: ActionShape) -> dict[str, Any]:
    return action.model_dump(include=set(ActionDefinition.model_fields))


RefPath = Annotated[str, Path(description="The action's name.", examples=["reports.render"])]


async def _possible_ref(ref: RefPath) -> str:
    if not can_name_an_action(ref):
        raise unknown_action(ref)
    return ref


PossibleRef = Annotated[str, Depends(_possible_ref)]
"""A name in the path that may be one; what cannot be is not found."""
