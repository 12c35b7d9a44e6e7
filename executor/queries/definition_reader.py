"""Reads definitions as the turns wrote them, of all kinds, and who changed what.

In: names, and where a page starts. Out: schemas, each with the tag of its definition, and where the next page
starts. What waits and runs is not here: only the leader knows it (`queue_reader`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import asyncpg
from pydantic import BaseModel
from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.json_limits import readable
from turnstile.executor.asking.asker import Asker
from turnstile.executor.leader.door import definition_tag
from turnstile.executor.queries.read_limiter import LimitedReader, ReadLimiter
from turnstile.executor.queries.rows import page_of, parsed
from turnstile.executor.queries.schemas import (
    USERS_MAX,
    ActionDetail,
    AuditLogEntry,
    ChangeEntry,
    CodeSchemas,
    PoolAction,
    ResourceUser,
    StoredAction,
    StoredKey,
    StoredPool,
    StoredResource,
    StoredSchedule,
    SubjectKind,
)
from turnstile.executor.questions.protocol import Answered, GateGauges, Gates, PoolGauge, ResourceGauge
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

Stored = TypeVar("Stored", bound=BaseModel)
G = TypeVar("G", ResourceGauge, PoolGauge)


_STATEMENTS: Final = statements("queries/definitions.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged(Generic[Stored]):
    """A definition, and the `ETag` of what an operator defined of it."""

    stored: Stored
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogFilter:
    """Which rows of the audit log are selected: all conditions must hold; None: no condition."""

    subject_kind: str | None = None
    subject: str | None = None
    action_ref: str | None = None
    verb: str | None = None
    user: str | None = None
    recorded_after: datetime | None = None
    """This instant or later."""
    recorded_before: datetime | None = None
    """Earlier than this instant."""
    scope: tuple[str, ...] | None = None
    """Only rows about actions whose names begin with one of these."""


class DefinitionReader(LimitedReader):
    """Safe to share between tasks. Raises Unavailable and Overloaded."""

    def __init__(self, database: Database, limiter: ReadLimiter, asker: Asker) -> None:
        super().__init__(database, limiter)
        self._asker = asker

    # Actions.

    async def action(self, ref: str) -> Tagged[ActionDetail] | None:
        """Return one action with the schemas of its code."""
        async with self.snapshot() as connection:
            row = await connection.fetchrow(_STATEMENTS["action"], ref)
            derived = await connection.fetch(_STATEMENTS["code_schemas"], ref)
        if row is None:
            return None
        return Tagged(stored=_action_detail(_action(row), derived), tag=_tag(row))

    async def action_id(self, ref: str) -> int | None:
        """Return the id of an action; None: there is no such action."""
        row = await self._row(_STATEMENTS["action"], ref)
        return None if row is None else int(row["id"])

    async def actions(
        self, *, after_ref: str | None, limit: int, scope: Sequence[str] | None = None
    ) -> tuple[list[StoredAction], str | None]:
        """Return actions in the order of their names, and the name after which the next page starts.

        With `scope` only those whose names begin with one of its prefixes.
        """
        found = await self._rows(_STATEMENTS["actions"], after_ref or "", limit + 1, scope)
        return page_of(found, limit, _action, lambda action: action.ref)

    async def keys(
        self, ref: str, *, after_key: str | None, limit: int
    ) -> tuple[list[StoredKey], str | None]:
        """Return the keys of an action that have settings, in order, and after which the next page starts."""
        found = await self._rows(_STATEMENTS["keys"], ref, after_key or "", limit + 1)
        return page_of(found, limit, _key, lambda key: key.concurrency_key)

    async def key(self, ref: str, key: str) -> StoredKey | None:
        """Return the settings of one key of an action, if it has any."""
        row = await self._row(_STATEMENTS["key"], ref, key)
        return None if row is None else _key(row)

    # Resources and pools.

    async def resource(self, name: str) -> Tagged[StoredResource] | None:
        """Return one resource, and the actions that use it."""
        row = await self._row(_STATEMENTS["resources"], name, "", 1, USERS_MAX)
        if row is None:
            return None
        return Tagged(stored=_resource(row, await self._gauges()), tag=_tag(row))

    async def resources(
        self, *, after_name: str | None, limit: int
    ) -> tuple[list[StoredResource], str | None]:
        """Return resources in the order of their names, and the name after which the next page starts."""
        found = await self._rows(_STATEMENTS["resources"], None, after_name or "", limit + 1, USERS_MAX)
        gauges = await self._gauges()
        return page_of(found, limit, lambda row: _resource(row, gauges), lambda resource: resource.name)

    async def pool(self, name: str) -> Tagged[StoredPool] | None:
        """Return one pool, with what the leader knows of it."""
        row = await self._row(_STATEMENTS["pools"], name, "", 1, USERS_MAX)
        if row is None:
            return None
        return Tagged(stored=_pool(row, await self._gauges()), tag=_tag(row))

    async def pools(self, *, after_name: str | None, limit: int) -> tuple[list[StoredPool], str | None]:
        """Return pools in the order of their names, and the name after which the next page starts."""
        found = await self._rows(_STATEMENTS["pools"], None, after_name or "", limit + 1, USERS_MAX)
        gauges = await self._gauges()
        return page_of(found, limit, lambda row: _pool(row, gauges), lambda pool: pool.name)

    async def _gauges(self) -> GateGauges | None:
        answer = await self._asker.ask(Gates(with_use=True))
        return answer.body if isinstance(answer, Answered) else None

    # Schedules.

    async def schedule(self, name: str) -> Tagged[StoredSchedule] | None:
        """Return one schedule, and what became of its last occurrences."""
        row = await self._row(_STATEMENTS["schedules"], name, "", 1)
        return None if row is None else Tagged(stored=_schedule(row), tag=_tag(row))

    async def schedules(
        self, *, after_name: str | None, limit: int
    ) -> tuple[list[StoredSchedule], str | None]:
        """Return schedules in the order of their names, and the name after which the next page starts."""
        found = await self._rows(_STATEMENTS["schedules"], None, after_name or "", limit + 1)
        return page_of(found, limit, _schedule, lambda schedule: schedule.name)

    # Changes.

    async def changes(
        self, kind: SubjectKind, name: str, *, before_id: int, limit: int
    ) -> tuple[list[ChangeEntry], int | None]:
        """Return the changes of a definition, newest first, and the id before which the next page starts."""
        found = await self._rows(_STATEMENTS["changes"], kind, name, before_id, limit + 1)
        return page_of(found, limit, _change, lambda change: change.id)

    async def audit_log(
        self, wanted: AuditLogFilter, *, before_id: int, limit: int
    ) -> tuple[list[AuditLogEntry], int | None]:
        """Return what operators did, newest first, and the id before which the next page starts."""
        async with self.snapshot() as connection:
            found = await connection.fetch(
                _STATEMENTS["audit_log"], before_id, wanted.subject_kind, wanted.subject, wanted.action_ref,
                wanted.verb, wanted.user, wanted.recorded_after, wanted.recorded_before, wanted.scope,
                limit + 1,
            )  # fmt: skip
        return page_of(found, limit, _audit_log_entry, lambda entry: entry.id)


def _tag(row: "Row") -> str:
    return definition_tag(from_json(row["body"]))


def _known(model: type[Stored], row: "Row") -> dict[str, Any]:
    """Return the fields of a definition; one of a newer version may have more."""
    known = model.model_fields
    return {name: value for name, value in from_json(row["body"]).items() if name in known} | {
        name: row[name] for name in ("id", "created_at", "updated_at")
    }


def _action(row: "Row") -> StoredAction:
    return StoredAction(**_known(StoredAction, row))


def _action_detail(action: StoredAction, derived: "Sequence[Row]") -> ActionDetail:
    code_schemas = [
        CodeSchemas(
            parameters_schema=readable(row["parameters_schema"]),
            result_schema=readable(row["result_schema"]),
            registered_at=row["registered_at"],
        )
        for row in derived
    ]
    takes_all = any(row["takes_all"] for row in derived) or any(
        each.parameters_schema is None for each in code_schemas
    )
    return ActionDetail(
        **dict(action),
        code_schemas=code_schemas,
        parameters_checked_by=(
            "definition" if action.parameters_schema is not None
            else "code" if derived and not takes_all
            else "worker"
        ),
    )  # fmt: skip


def _key(row: "Row") -> StoredKey:
    body = from_json(row["body"])
    of_action = None if row["max_concurrent"] is None else int(row["max_concurrent"])
    return StoredKey(
        concurrency_key=body["key"],
        max_concurrent=body.get("max_concurrent") if body.get("has_limit") else of_action,
        has_limit=body.get("has_limit", False),
        weight=body.get("weight", 1),
    )


def _resource(row: "Row", gauges: GateGauges | None) -> StoredResource:
    used_by = parsed(ResourceUser, row["used_by"])
    stored = _known(StoredResource, row)
    capacity = stored["capacity"]
    gauge = _named(gauges.resources, stored["name"]) if gauges else None
    return StoredResource(
        **stored,
        held=None if gauge is None else gauge.held,
        held_waiting=None if gauge is None else gauge.held_waiting,
        waiting=None if gauge is None else gauge.waiting,
        use=[] if gauge is None else list(gauge.use),
        users=row["users"],
        used_by=used_by,
        warnings=[
            f"{user.action_ref} takes {user.units} units, the capacity is {capacity}: its executions wait"
            for user in used_by
            if capacity is not None and user.units > capacity
        ],
    )


def _named(gauges: Sequence[G], name: str) -> G | None:
    return next((each for each in gauges if each.name == name), None)


def _pool(row: "Row", gauges: GateGauges | None) -> StoredPool:
    name = row["name"]
    gauge = None
    if gauges is not None:
        gauge = _named(gauges.pools, name) or PoolGauge(
            name=name, capacity=0, held=0, waiting=0, wanted=0, waiting_queues=0, paused=False, served=()
        )
    return StoredPool(
        **_known(StoredPool, row),
        capacity=None if gauge is None else gauge.capacity,
        held=None if gauge is None else gauge.held,
        waiting=None if gauge is None else gauge.waiting,
        wanted=None if gauge is None else gauge.wanted,
        use=[] if gauge is None else list(gauge.use),
        actions=row["actions"],
        action_weights=parsed(PoolAction, row["listed"]),
        warnings=[f"{ref} has a weight, and is not in this pool" for ref in row["strangers"]],
    )


def _schedule(row: "Row") -> StoredSchedule:
    decided = ("next_at", "last_execution_id", "admitted", "skipped", "refused", "missed_at", "problem")
    return StoredSchedule(**_known(StoredSchedule, row), **{name: row[name] for name in decided})


def _change(row: "Row") -> ChangeEntry:
    return ChangeEntry(**{**row, "old": readable(row["old"]), "new": readable(row["new"])})


def _audit_log_entry(row: "Row") -> AuditLogEntry:
    return AuditLogEntry(**{**row, "before": readable(row["before"]), "after": readable(row["after"])})
