"""Reads and changes the definitions of actions, resources and pools; one change at a time for each.

A change reads the definition, changes it, checks it as a whole and stores it, under a lock of its name that
holds over all executors, so that no change undoes another. Who changed what is stored in the transaction of
the change.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import REFUSED_BY_DATABASE, Database
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.operations import Operations, answer_deadline
from turnstile.executor.queries.schemas import ActionDetail, StoredPool, StoredResource
from turnstile.executor.results import Deletion, ResourceDeletion

DELETED_WITH_MAX: Final = 10_000
"""Most waiting executions that are cancelled with their action in one call."""

Definition = TypeVar("Definition", bound=BaseModel)
Stored = TypeVar("Stored", bound=BaseModel)


class DefinitionStore(ABC, Generic[Definition, Stored]):
    """Definitions of one kind. Safe to share between tasks.

    `find` returns what is stored under a name, or None. The `check` of a change receives the same; it raises
    Refusal if the caller expects something else.
    """

    kind: ClassVar[str]
    name_field: ClassVar[str]
    lock: ClassVar[str]
    model: type[Definition]

    def __init__(
        self, database: Database, operations: Operations, find: Callable[[str], Awaitable[Stored | None]]
    ) -> None:
        self._database = database
        self._operations = operations
        self._find = find
        self._writing = asyncio.Lock()

    async def read(self, name: str) -> Stored:
        """Return what is stored under a name; raises Refusal if nothing is."""
        found = await self._find(name)
        if found is None:
            raise self.unknown(name)
        return found

    async def put(
        self,
        name: str,
        given: Mapping[str, Any],
        caller: Caller,
        *,
        check: Callable[[Stored | None], None] | None = None,
    ) -> Stored:
        """Store a whole definition: absent fields get their defaults."""
        self._check_name(name, given, f"differs from the path; omit it, or send {name!r}")
        definition = read_model(self.model, {**given, self.name_field: name})
        async with self._one_at_a_time(name):
            if check is not None:
                check(await self._find(name))
            return await self._store(name, definition, caller)

    async def change(
        self,
        name: str,
        given: Mapping[str, Any],
        caller: Caller,
        *,
        check: Callable[[Stored | None], None] | None = None,
    ) -> Stored:
        """Change some fields of a definition and keep the others; so also inside `retry` and `weights`."""
        self._check_name(name, given, f"the name of {self.kind} never changes; omit it")
        async with self._one_at_a_time(name):
            found = await self.read(name)
            if check is not None:
                check(found)
            stored = found.model_dump(include=set(self.model.model_fields))
            merged = {**stored, **given}
            for field in ("retry", "weights"):
                if isinstance(part := given.get(field), Mapping) and field in stored:
                    merged[field] = {**stored[field], **part}
            return await self._store(name, read_model(self.model, merged), caller)

    @staticmethod
    @abstractmethod
    def unknown(name: str) -> Refusal:
        """Refuse a request about a name without a definition."""

    @abstractmethod
    async def _write(self, definition: Definition, caller: Caller) -> None:
        """Store a definition."""

    def _check_name(self, name: str, given: Mapping[str, Any], sentence: str) -> None:
        if given.get(self.name_field, name) != name:
            raise Refusal(Code.INVALID_MESSAGE, f"{self.name_field}: {sentence}")

    async def _store(self, name: str, definition: Definition, caller: Caller) -> Stored:
        try:
            await self._write(definition, caller)
        except REFUSED_BY_DATABASE as error:
            raise Refusal(Code.INVALID_MESSAGE, f"the database refuses it: {error}") from None
        return await self.read(name)

    @asynccontextmanager
    async def _one_at_a_time(self, name: str) -> AsyncIterator[None]:
        # The local lock comes first, so that this executor holds one connection at most while it waits.
        async with answer_deadline(), self._writing, self._database.transaction() as connection:
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"{self.lock}.{name}"
            )
            yield


class ActionStore(DefinitionStore[ActionDefinition, ActionDetail]):
    """Definitions of actions."""

    kind = "an action"
    name_field = "ref"
    lock = "turnstile.action"
    model = ActionDefinition

    async def delete(
        self,
        ref: str,
        caller: Caller,
        *,
        with_waiting: bool,
        check: Callable[[ActionDetail], None] | None = None,
    ) -> Deletion:
        """Delete an action, if none of its executions runs and, unless `with_waiting`, none waits.

        The result shows whether it was deleted.
        """
        async with self._one_at_a_time(ref):
            found = await self.read(ref)
            if check is not None:
                check(found)
            cancel_max = DELETED_WITH_MAX if with_waiting else 0
            deletion = await self._operations.delete_action(ref, cancel_max, caller)
        if deletion is None:
            raise self.unknown(ref)
        return deletion

    @staticmethod
    def unknown(name: str) -> Refusal:
        """Refuse a request about an action that does not exist."""
        return Refusal(
            Code.NOT_FOUND,
            f"ref: there is no action {name[:200]!r}; start a worker that has it, or define it: "
            "executor actions apply FILE",
        )

    async def _write(self, definition: ActionDefinition, caller: Caller) -> None:
        await self._operations.put_actions([definition], caller)


class ResourceStore(DefinitionStore[ResourceDefinition, StoredResource]):
    """Definitions of resources."""

    kind = "a resource"
    name_field = "name"
    lock = "turnstile.resource"
    model = ResourceDefinition

    async def delete(self, name: str, caller: Caller) -> ResourceDeletion:
        """Delete a resource if nothing uses it; the result shows whether it was deleted."""
        async with self._one_at_a_time(name):
            deletion = await self._operations.delete_resource(name, caller)
        if deletion is None:
            raise self.unknown(name)
        return deletion

    @staticmethod
    def unknown(name: str) -> Refusal:
        """Refuse a request about a resource that does not exist."""
        return Refusal(
            Code.NOT_FOUND,
            f"name: there is no resource {name[:200]!r}; GET /resources lists them, and PUT creates one",
        )

    async def _write(self, definition: ResourceDefinition, caller: Caller) -> None:
        await self._operations.put_resource(definition, caller)


class PoolStore(DefinitionStore[PoolDefinition, StoredPool]):
    """Settings of pools."""

    kind = "a pool"
    name_field = "name"
    lock = "turnstile.pool"
    model = PoolDefinition

    @staticmethod
    def unknown(name: str) -> Refusal:
        """Refuse a request about a pool that does not exist."""
        return Refusal(
            Code.NOT_FOUND,
            f"name: there is no pool {name[:200]!r}; GET /pools lists them, and PUT creates one",
        )

    async def _write(self, definition: PoolDefinition, caller: Caller) -> None:
        await self._operations.put_pool(definition, caller)
